"""A fault planted in the time model's own curve is named, healthy curves and near misses are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.diagnosis import Facts, LineRef, hypotheses
from busbw.diagnosis.facts import Curve
from busbw.diagnosis.hypotheses import HYPOTHESES, fits, named
from busbw.hardware import find_cluster, pcie_bytes_per_s
from busbw.prediction import model_in, predict_in, situation_of

from .told import RULE, Case, check, facts_of, fires, near_miss

SIZES = [8 << place for place in range(0, 31, 2)]
NIC = """CA 'mlx5_{nic}'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 1
\t\tLink layer: InfiniBand
"""


def where_of(name, nodes):
    return situation_of(find_cluster(name, nodes)[0])


def _runs(where, broken):
    """What NCCL chooses by: fewer NICs it sees, links that are slow it does not; None, the fastest, without NVLS or peer access."""
    if broken.nics != where.nics:
        return model_in(broken)
    return model_in(where) if (broken.nvls, broken.shape) == (where.nvls, where.shape) else None


def said(where, broken, collective="all_reduce", *, late_s=0.0, factor=1.0, noise=0.0, seed=0):
    """What is said of the curve of `broken` by someone who believes in `where`."""
    times = (predict_in(broken, collective, SIZES, model=_runs(where, broken)).time_s + late_s) * factor
    times *= np.exp(np.random.default_rng(seed).normal(0, noise, len(SIZES)))
    best = named(fits(where, collective, SIZES, times.tolist()))
    return None if best is None else best.hypothesis.kind


def one_nic(where):
    return replace(where, network_bytes_per_s=where.network_bytes_per_s / where.nics, nics=1)


def gen3_x8(where):
    return replace(where, network_bytes_per_s=pcie_bytes_per_s(3, 8) * where.nics)


def sockets(where):
    """3 GB/s a node over TCP: of whatever line rate, the calibration's share of it is what TCP reaches."""
    found = replace(where, network="sockets", nics=1)
    reached = predict_in(found, "all_gather", [1 << 33]).algbw_bytes_per_s[0]
    return replace(found, network_bytes_per_s=where.network_bytes_per_s * 3e9 / reached)


@pytest.mark.parametrize(
    ("name", "nodes", "collective", "broken", "kind"),
    [
        ("dgx-a100", 4, "all_reduce", one_nic, "link-rate-degraded"),
        ("dgx-h100", 2, "all_reduce", one_nic, "link-rate-degraded"),
        ("dgx-b200", 8, "all_gather", one_nic, "link-rate-degraded"),
        ("dgx-h100", 4, "all_gather", gen3_x8, "pcie-link-degraded"),
        ("dgx-a100", 2, "all_reduce", sockets, "socket-fallback"),
        ("dgx-h100", 16, "all_reduce", sockets, "socket-fallback"),
        ("l40s-8", 1, "all_reduce", lambda where: replace(where, intra_bytes_per_s=pcie_bytes_per_s(3, 8)), "pcie-link-degraded"),
        ("dgx-a100", 1, "all_reduce", lambda where: replace(where, intra_bytes_per_s=where.intra_bytes_per_s / 2), "nvlink-down"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_named_through_noise_of_4_percent(name, nodes, collective, broken, kind):
    where = where_of(name, nodes)
    assert [said(where, broken(where), collective, noise=0.04, seed=seed) for seed in range(3)] == [kind] * 3


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "mi300x-8"])
def test_a_rank_that_is_2_ms_late_is_seen_where_calls_are_short(name):
    """Large sizes take tens of milliseconds, small ones tens of microseconds: only those tell."""
    where = where_of(name, 2)
    assert said(where, where, late_s=2e-3, noise=0.04) == "slow-node"


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.1])
@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "dgx-b200", "mi300x-8"])
def test_a_machine_somewhat_slower_or_faster_than_the_model_is_not_accused(name, nodes, factor):
    where = where_of(name, nodes)
    assert said(where, where, factor=factor, noise=0.05) is None


def test_near_misses_are_not_accused():
    """Seven of eight NICs, and a rank 50 us late, are within what healthy sites differ by."""
    where = where_of("dgx-h100", 4)
    assert said(where, replace(where, network_bytes_per_s=where.network_bytes_per_s * 7 / 8)) is None
    assert said(where, where, late_s=50e-6) is None


def test_a_fault_of_no_known_shape_is_not_forced_into_one():
    """Large sizes twenty times slower, the others healthy: more than one NIC of eight or half the lanes could explain, and not TCP."""
    where = where_of("dgx-h100", 4)
    times = predict_in(where, "all_reduce", SIZES).time_s * np.where(np.array(SIZES) >= 1 << 26, 40.0, 1.0)
    assert named(fits(where, "all_reduce", SIZES, times.tolist())) is None


@given(times=st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=12))
def test_whatever_the_curve_probabilities_sum_to_one(times):
    where, sizes = where_of("dgx-h100", 2), SIZES[: len(times)]
    found = fits(where, "all_reduce", sizes, times)
    assert sum(fit.posterior for fit in found) == pytest.approx(1.0)
    assert all(0 <= fit.posterior <= 1 for fit in found)


def test_a_name_of_a_gpu_is_looked_up_once_however_many_devices_have_it(monkeypatch):
    """Thousands of ranks name the same GPU, and each rule asks for each table."""
    asked = []
    monkeypatch.setattr(hypotheses, "find_accelerator", asked.append)
    facts, at = Facts(), LineRef("log", 1, 0, "a")
    facts.devices = [("host", "Graphics Device 4711", at)] * 5000
    assert hypotheses.gpu_of(facts, Curve("nccl-tests", "a", 0, "all_reduce", 8, 1)) is None
    assert len(asked) == 1


def test_priors_of_healthy_and_all_faults_sum_to_at_most_one_and_a_twentieth():
    assert sum(hypothesis.prior for hypothesis in HYPOTHESES) == pytest.approx(1.0, abs=0.06)


def table(times_s, ranks=16, *, mark=True):
    """all_reduce_perf's output; the rows from 64 MiB on are marked as what a finding shows."""
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on node{rank // 8} device {rank % 8} [0x{rank % 8:02x}] NVIDIA H100 80GB HBM3"
        for rank in range(ranks)
    ]
    lines += [
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    for size, time_s in zip(SIZES, times_s, strict=True):
        rate = size / time_s / 1e9
        half = f"{time_s * 1e6:.2f} {rate:.2f} {rate * 2 * (ranks - 1) / ranks:.2f} 0"
        lines.append(f"{'> ' * (mark and size >= 1 << 26)}{size} {max(1, size // 4)} float sum -1 {half} {half}")
    return "\n".join(lines) + "\n"


TWO = where_of("dgx-h100", 2)
ONE_NIC = predict_in(one_nic(TWO), "all_reduce", SIZES, model=model_in(one_nic(TWO))).time_s
IBSTAT = "".join(NIC.format(nic=nic) for nic in range(8))
SETTING = "node0:1000:1000 [0] NCCL INFO NCCL_ALGO set by environment to Ring.\n"
CASES = (
    fires("curve_of_a_fault", "link-rate-degraded", {"table.txt": table(ONE_NIC), "ibstat.txt": IBSTAT}, severity="major"),
    near_miss("curve_of_a_fault", "nobody says which NICs the nodes have", table(ONE_NIC, mark=False)),
    near_miss("curve_of_a_fault", "a variable chooses the algorithm", {"table.txt": table(ONE_NIC, mark=False), "ibstat.txt": IBSTAT, "nccl.log": SETTING}),
    near_miss("curve_of_a_fault", "a healthy curve", {"table.txt": table(predict_in(TWO, "all_reduce", SIZES, model=model_in(TWO)).time_s, mark=False), "ibstat.txt": IBSTAT}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_table_fires_or_not(case: Case):
    check(case)


def test_the_summary_names_the_fault_and_a_command_tells_it_from_its_rivals():
    (found,) = RULE["curve_of_a_fault"](facts_of({"table.txt": table(ONE_NIC, mark=False), "ibstat.txt": IBSTAT}))
    assert "one NIC of a node (1 of 8 NICs)" in found.summary
    assert any("NET/IB : Using" in tell for tell in found.distinguish)


def test_what_a_log_contradicts_is_no_hypothesis():
    """Of a curve of TCP nothing else is named when TCP is ruled out."""
    where = where_of("dgx-h100", 2)
    times = predict_in(sockets(where), "all_reduce", SIZES).time_s
    found = fits(where, "all_reduce", SIZES, times.tolist(), excluded={"TCP sockets instead of RDMA"})
    assert "socket-fallback" not in {fit.hypothesis.kind for fit in found}
    best = named(found)
    assert best is None
