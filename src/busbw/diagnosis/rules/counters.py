"""Counters of NICs and GPUs: what grew during the run, what one device counts and its siblings do not."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from busbw.diagnosis.facts import Counter, Event, Facts, Growth, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.counter_words import (
    BIT_ERRORS,
    LINK_DOWN,
    LOSSES,
    WAITING,
    Siblings,
    counted,
    grown,
    named_in,
    on_infiniband,
    who,
    word,
)
from busbw.diagnosis.rules.nvlink import NVLINK_XIDS

__all__ = ["RULES"]

_MANY = 100
"""Lost packets in one run that are more than a chance; a guess."""
_TIMES = 10.0
"""How far a counter must stand out from its siblings to mean something without a second reading; a guess."""
_FEW = 10.0
"""Errors since the boot that every port may have; a guess."""


def _complaints(facts: Facts) -> list[Event]:
    """What the job says of transfers that fail or do not end."""
    return facts.all(
        "nccl.ib_completion", "nccl.ib_async", "nccl.ib_call_failed", "ucx.retry_exceeded", "torch.watchdog_timeout"
    )


def _about(growths: Sequence[Growth], events: Sequence[Event]) -> list[Event]:
    found = {id(e): e for g in growths for e in named_in(g.last, events)}
    return list(found.values())


def _both(growths: Sequence[Growth]) -> list[Counter]:
    return [reading for g in growths for reading in (g.first, g.last)]


def _sum(growths: Sequence[Growth]) -> str:
    return f"{sum(g.by for g in growths):,.0f}"


def packets_lost_in_the_run(facts: Facts) -> Iterator[Finding]:
    """Between two readings of NIC counters packets were lost or had to be sent again.

    Fires when such a counter (out_of_sequence, packet_seq_err, local_ack_timeout_err, rx_prioN_discards ...) grew. Surer when the job's log names
    that NIC or its host in a transfer that failed. Less sure under 100 losses. Silent on a counter that did not grow, however high it is, on a port whose link itself was lost or makes bit
    errors: that explains the losses, and on ports that other files say are InfiniBand: it drops nothing, and adaptive routing changes the order.
    """
    broken = {(g.last.place, g.last.device) for p in (LINK_DOWN, BIT_ERRORS) for g in grown(facts, p)}
    lost = [
        g
        for g in grown(facts, LOSSES)
        if (g.last.place, g.last.device) not in broken and not on_infiniband(facts, g.last)
    ]
    if not lost:
        return
    complaints = _about(lost, _complaints(facts))
    few = sum(g.by for g in lost) < _MANY
    places = dict.fromkeys(who(g.last) for g in lost)
    here = {g.last.place for g in lost}
    unprotected = [c for c in counted(facts, re.compile("pfc_enabled")) if c.place in here]
    unprotected = unprotected if all(c.value == 0 for c in unprotected) else []
    confidence = 0.8 if complaints else (0.4 if few else (0.75 if unprotected else 0.65))
    yield Finding(
        "roce-lossy-fabric", confidence, "fatal" if complaints else ("minor" if few else "major"),
        f"{_sum(lost)} packets were lost or sent again during the run at {', '.join(list(places)[:4])}" + (", and no priority has flow control (PFC)" if unprotected else ""),
        lines_of([*_both(lost[:4]), *complaints[:4], *unprotected[:2]]),
        "Put RoCE into a lossless class (DSCP on the NIC, PFC on the switch) or turn ECN and DCQCN on end to end. If one port alone loses, look at its cable and switch port.",
        ["the same counters again around a run under incast", "mlnx_qos -i IFACE", "the switch's drop counters per port and priority"],
    )  # fmt: skip


def link_lost_or_noisy(facts: Facts) -> Iterator[Finding]:
    """A link went down, trained again or makes bit errors.

    Fires when link_downed, link_error_recovery, symbol_error or PortRcvErrors grew between two readings; on one reading only where a port counts
    ten times what most of its siblings do, and then weakly: it may have been before the job. Surer when the job's log names that NIC or its
    host in a failure. Silent on counters that did not grow or that all ports have alike.
    """
    remedy = "Reseat or change cable and transceiver of the port named; compare its counters with those of the port at the other end."
    tell = ["mlxlink -d DEV -c -e", "the same counters a minute apart under load"]
    down, noise = grown(facts, LINK_DOWN), grown(facts, BIT_ERRORS)
    if down or noise:
        first = down or noise
        complaints = _about([*down, *noise], _complaints(facts))
        confidence = (0.9 if down else 0.75) if complaints else (0.8 if down else 0.5)
        what = "lost its link or trained it again" if down else "received wrong bits"
        yield Finding(
            "link-flap", confidence, "fatal" if complaints and down else "major", f"{who(first[0].last)} {what} during the run ({_sum(first)} times)",
            lines_of([*_both(down[:4]), *_both(noise[:2]), *complaints[:4]]), remedy, tell,
        )  # fmt: skip
        return
    compared = {(g.last.place, g.last.device, g.last.port, g.last.name) for g in facts.growths}
    for pattern in (LINK_DOWN, BIT_ERRORS):
        by_name: dict[str, list[Counter]] = defaultdict(list)
        for counter in counted(facts, pattern):
            by_name[word(counter.name)].append(counter)
        for same in by_name.values():
            siblings = Siblings(c.value for c in same)
            odd = [
                c for c in same
                if (c.place, c.device, c.port, c.name) not in compared and siblings.stands_out(c.value, _TIMES, _FEW)
            ]  # fmt: skip
            if not odd or len(odd) * 2 > len(same):
                continue
            worst = max(odd, key=lambda c: c.value)
            complaints = named_in(worst, _complaints(facts))
            usual = sorted((c for c in same if c not in odd), key=lambda c: c.value)
            yield Finding(
                "link-flap", 0.6 if complaints else 0.35, "major" if complaints else "minor",
                f"{who(worst)} counts {worst.value:,.0f} of {word(worst.name)} since its last reset, most of its {len(same) - 1} siblings {statistics.median(c.value for c in usual):,.0f}",
                lines_of([*odd[:4], *usual[:2], *complaints[:4]]), remedy, tell,
            )  # fmt: skip
            return


def receiver_behind(facts: Facts) -> Iterator[Finding]:
    """Peers had no receive posted when data came: the process there is late, or its CPU is taken.

    Fires when rnr_nak_retry_err grew between two readings. Silent on its value alone.
    """
    late = grown(facts, re.compile("rnr_nak_retry_err"))
    if late:
        complaints = _about(late, _complaints(facts))
        yield Finding(
            "rank-late-or-stuck", 0.45 if complaints else 0.3, "major" if complaints else "minor", f"{who(late[0].last)} was told {_sum(late)} times that the receiver is not ready",
            lines_of([*_both(late[:4]), *complaints[:4]]), "Look at the process at the other end: CPU binding, swapping, a stuck GPU.", ["py-spy dump --pid PID on the peers of that host"],
        )  # fmt: skip


def one_port_waits(facts: Facts) -> Iterator[Finding]:
    """Data waits at one port far longer than at its siblings: several flows share a path beyond it.

    Fires when port_xmit_wait or pause frames of one port grew five times as much as the median of at least three siblings. Minor: it may be the
    traffic itself that is uneven. Silent when all ports wait alike, and on one reading: the ticks count since the boot.
    """
    by_name: dict[str, list[Growth]] = defaultdict(list)
    for growth in facts.growths:
        if WAITING.fullmatch(word(growth.last.name)):
            by_name[word(growth.last.name)].append(growth)
    for same in by_name.values():
        siblings = Siblings(g.by for g in same)
        odd = [g for g in same if len(same) > 3 and siblings.stands_out(g.by, 5.0, 1000.0)]
        if odd and len(odd) * 2 < len(same):
            rest = [g for g in same if g not in odd]
            usual = statistics.median(g.by for g in rest)
            yield Finding(
                "ecmp-collision", 0.35, "minor", f"{who(odd[0].last)} waited {odd[0].by:,.0f} times ({word(odd[0].last.name)}), most siblings {usual:,.0f}",
                lines_of([*_both(odd[:3]), *(g.last for g in rest[:2])]),
                "Spread the flows: NCCL_IB_QPS_PER_CONNECTION=4 with NCCL_IB_SPLIT_DATA_ON_QPS=0, adaptive routing, or another hash on the switch.",
                ["the switch's port counters on the way of that port", "the same run with NCCL_IB_QPS_PER_CONNECTION=4"],
            )  # fmt: skip
            return


_NVLINK = re.compile(r".*nvlink.*(?:crc|replay|recovery).*|(?:crc_flit|crc_data|replay|recovery)_err.*")


def nvlink_errors(facts: Facts) -> Iterator[Finding]:
    """NVLinks of a GPU correct errors or recover.

    Fires when CRC, replay or recovery errors of NVLink grew between two readings (DCGM, nvidia-smi nvlink -e), and weakly when one GPU counts a
    hundred or more and ten times what the others do. Replays alone are corrected, so without a recovery the finding is minor. Silent on GPUs alike.
    """
    lines_grown = grown(facts, _NVLINK)
    remedy = "Watch the link; if recoveries go on, drain the node, reset the GPU or reseat it, then replace board, tray or cable."
    tell = ["nvidia-smi nvlink -e twice under load", "dcgmi diag -r 2"]
    recovered = [g for g in lines_grown if "recovery" in word(g.last.name)]
    if lines_grown:
        yield Finding(
            "nvlink-down", 0.6 if recovered else 0.35, "major" if recovered else "minor", f"NVLinks of {who((recovered or lines_grown)[0].last)} had {_sum(recovered or lines_grown)} {'recoveries' if recovered else 'corrected errors'} during the run",
            lines_of(_both([*recovered[:4], *lines_grown[:4]])), remedy, tell,
        )  # fmt: skip
        return
    per_gpu: dict[tuple[str, str | None], list[Counter]] = defaultdict(list)
    for counter in counted(facts, _NVLINK):
        per_gpu[counter.place, counter.label("gpu") or counter.device].append(counter)
    totals = {gpu: sum(c.value for c in found) for gpu, found in per_gpu.items()}
    siblings = Siblings(totals.values())
    odd = [gpu for gpu, total in totals.items() if siblings.stands_out(total, _TIMES, 100.0)]
    if odd and len(odd) * 2 < len(totals):
        worst = sorted(per_gpu[odd[0]], key=lambda c: -c.value)
        yield Finding(
            "nvlink-down", 0.35, "minor", f"NVLinks of {who(worst[0])} count {totals[odd[0]]:,.0f} errors since the driver was loaded, those of most other GPUs {statistics.median(totals.values()):,.0f}",
            lines_of([c for c in worst[:6] if c.value > 0]), remedy, tell,
        )  # fmt: skip


def pcie_replays(facts: Facts) -> Iterator[Finding]:
    """The PCIe link of one GPU repeats packets that the others' links do not.

    Fires when the replay counter of a GPU is a hundred or more, grown or since the boot, and ten times that of most others. Minor: replays are
    corrected, and cost bandwidth only in great number. Silent on a few replays, which are normal.
    """
    pattern = re.compile(r"(?:.*_)?pcie?_?replay_counter|.*replays_since_reset|.*pci_replays?.*")
    growths = {(g.last.place, g.last.device, g.last.labels): g.by for g in grown(facts, pattern)}
    readings = counted(facts, pattern)
    values = [growths.get((c.place, c.device, c.labels), 0.0 if growths else c.value) for c in readings]
    siblings = Siblings(values)
    odd = [(v, c) for v, c in zip(values, readings, strict=True) if siblings.stands_out(v, _TIMES, 100.0)]
    if odd and len(odd) * 2 < len(values):
        value, worst = max(odd, key=lambda pair: pair[0])
        yield Finding(
            "pcie-link-degraded", 0.45 if growths else 0.3, "minor", f"the PCIe link of {who(worst)} repeated {value:,.0f} packets{'' if growths else ' since its last reset'}, most others {statistics.median(values):,.0f}",
            lines_of([c for _, c in odd]), "Reseat card, riser or cable; compare LnkSta under load with the other GPUs.", ["lspci -vv -s BUSID | grep Lnk", "nvidia-smi -q -d PERFORMANCE,CLOCK under load"],
        )  # fmt: skip


_FAULTS: tuple[tuple[frozenset[int], str, str], ...] = (
    (frozenset({48, 64, 94, 95, 140}), "gpu-ecc", "Drain the node, reset the GPU, check row remapping (nvidia-smi -q -d ROW_REMAPPER)."),
    (frozenset({79}), "gpu-fallen-off-bus", "Drain the node, power-cycle it; then check power, riser and cooling."),
    (frozenset(NVLINK_XIDS), "nvlink-down", "Drain the node, reset the GPUs or reboot; if it stays, replace the board."),
)  # fmt: skip
"""Xids that name a fault of the GPU's memory, bus or NVLink: code, kind, remedy (NVIDIA, "XID Errors", GPU deployment documentation)."""


def fault_gauges(facts: Facts) -> Iterator[Finding]:
    """DCGM or nvidia-smi hold the sign of a GPU fault: the last Xid, uncorrectable memory errors, a failed remapping.

    Fires on DCGM_FI_DEV_XID_ERRORS with the code of a memory, bus or NVLink fault; it keeps the last code, which may be older than the job.
    Also on volatile double-bit errors and on a row remapping that failed. Silent on code 0, on Xids of other matters and on errors before the last reset (aggregate).
    """
    xids = counted(facts, re.compile("xid_errors"))
    for codes, kind, remedy in _FAULTS:
        found = [c for c in xids if c.value in codes]
        if found:
            yield Finding(
                kind, 0.7, "fatal", f"{who(found[0])}: the last Xid was {found[0].value:.0f}", lines_of(found), remedy, ["dmesg -T | grep -i xid: when was it"],
            )  # fmt: skip
    memory = [
        c for c in counted(facts, re.compile(r"ecc_dbe_vol|.*volatile.*(?:uncorrectable|double_bit).*|.*uncorrected.*volatile.*|row_remap_failure|.*remapping_failure_occurred"))
        if c.value > 0
    ]  # fmt: skip
    if memory:
        failed = [c for c in memory if "remap" in word(c.name)]
        yield Finding(
            "gpu-ecc", 0.85 if failed else 0.7, "fatal", f"{who((failed or memory)[0])}: {'a row remapping failed' if failed else 'uncorrectable memory errors since the driver was loaded'}",
            lines_of(memory), _FAULTS[0][2], ["nvidia-smi -q -d ECC,ROW_REMAPPER"],
        )  # fmt: skip


_HELD_DOWN = 0x08 | 0x20 | 0x40 | 0x80
"""HW slowdown, SW thermal, HW thermal, HW power brake (nvml.h, nvmlClocksEventReason*)."""


def clocks_held_down(facts: Facts) -> Iterator[Finding]:
    """A GPU runs at a lower clock than its siblings under load, or says that heat or a power brake holds it down.

    Fires on the bits of thermal and hardware slowdown in the clock event reasons (DCGM, nvidia-smi), on growing thermal violation time, and when
    the SM clock of one busy GPU is below 80 % of the median of at least three other busy ones of its model, or of its host where no model is named. Silent about idle GPUs, which lower their clocks, about GPUs whose load is not known, and about
    the power cap, which is normal at full load.
    """
    remedy = "Check inlet temperature, fans, power supply and the power limit of that GPU; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER."
    tell = ["nvidia-smi dmon -s pucv under load on that host and on another"]
    held = [
        c
        for c in counted(facts, re.compile(r"clocks?_(?:throttle|event)s?_reasons?(?:_active)?"))
        if c.value.is_integer() and 0 <= c.value < 2**63 and int(c.value) & _HELD_DOWN
    ]
    violated = grown(facts, re.compile("thermal_violation|.*_counters_hw_(?:thermal_slowdown|power_brak.*)"))
    if held or violated:
        first = held[0] if held else violated[0].last
        yield Finding(
            "gpu-throttling", 0.75 if held else 0.6, "major", f"{who(first)} lowers its clocks for heat or a power brake", lines_of([*held[:6], *_both(violated[:4])]), remedy, tell,
        )  # fmt: skip
        return
    loads = {
        (c.place, c.device, c.label("gpu")): c.value
        for c in counted(facts, re.compile(r"gpu_util|gputl|utilization_gpu(?:_pct)?|sm"))
    }
    clocks = [
        c
        for c in counted(facts, re.compile(r"sm_clock|smclk|pclk|clocks(?:_current)?_sm(?:_mhz)?"))
        if loads.get((c.place, c.device, c.label("gpu")), 0.0) >= _BUSY_PCT
    ]
    alike: dict[tuple[str, str], list[Counter]] = defaultdict(list)
    for clock in clocks:
        model = clock.label("modelName")
        alike[("model", model) if model else ("place", clock.place)].append(clock)
    for same in alike.values():
        if len(same) < 4:
            continue
        usual = statistics.median(c.value for c in same)
        slow = [c for c in same if c.value < 0.8 * usual]
        if slow and len(slow) * 2 < len(same):
            yield Finding(
                "gpu-throttling", 0.55, "major", f"{who(slow[0])} runs at {slow[0].value:,.0f} MHz under load, most of {len(same)} GPUs at {usual:,.0f}",
                lines_of([*slow, *[c for c in same if c not in slow][:2]]), remedy, tell,
            )  # fmt: skip
            return


_BUSY_PCT = 90.0
"""Utilisation from which a GPU has no reason to lower its clocks by itself; a guess."""

RULES = (packets_lost_in_the_run, link_lost_or_noisy, receiver_behind, one_port_waits, nvlink_errors, pcie_replays, fault_gauges, clocks_held_down)  # fmt: skip
