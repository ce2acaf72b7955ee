"""What the NIC and the kernel give out: locked memory, queue pairs, completion queues, memory regions."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding

__all__ = ["RULES"]

_ENOUGH_KBYTES = 16 * 2**20 // 2**10
"""Locked memory below 16 MiB cannot hold the queues of one communicator (a guess from UCX's own warning threshold)."""


_ENOMEM = 12


def _low_limits(facts: Facts) -> list[Event]:
    low = [e for e in facts.all("system.memlock_low") if (e.number("kbytes") or 0) < _ENOUGH_KBYTES]
    low += facts.all("ucx.memlock")  # printed only after a registration failed against this limit
    return low + [e for e in facts.all("system.memlock_bytes") if (e.number("soft") or 0) < _ENOUGH_KBYTES * 1024]


def _refused(facts: Facts) -> list[Event]:
    """Verbs objects that could not be made for lack of something."""
    calls = facts.all("nccl.ib_call_failed", "ucx.cq_failed", "ucx.reg_failed", "verbs.call_failed")
    with_gpu = {e.at.path for e in facts.all("perftest.gpu_buffer")}
    unregistered = [
        e for e in facts.all("perftest.registration_failed") if e.at.path not in with_gpu and e.number("code") in (None, _ENOMEM)
    ]  # fmt: skip
    words = ("cannot allocate memory", "enomem", "no space left", "too many")
    refused = [e for e in calls if any(w in e.text.lower() for w in words)]
    silent = [
        e
        for e in calls
        if not e.fields.get("error", "x").strip()
        and e.fields.get("call", "").startswith(("create_", "reg_mr", "alloc_"))
    ]
    return (
        refused
        + silent
        + unregistered
        + facts.all("kernel.nic_limit")
        + [e for e in facts.all("kernel.registration_failed") if e.number("status") == -12]
    )


def _limit(event: Event) -> str:
    soft = event.number("soft")
    return f"{soft // 1024 if soft is not None else event.number('kbytes')} KiB"


def locked_memory(facts: Facts) -> Iterator[Finding]:
    """The limit of locked memory is too small to register buffers or make queues.

    Fires when a verbs object cannot be made for lack of memory and the limit is low or unknown; certain when the message or `ulimit -a`
    shows a limit of kilobytes. If a benchmark in the same output went through, the finding is minor. Silent when the limit is unlimited.
    """
    refused = _refused(facts)
    low = _low_limits(facts)
    unlimited = facts.all("system.memlock_unlimited") or _says_unlimited(facts)
    stated = facts.all("ucx.memlock")
    if low and not (refused or stated) and facts.all("system.memlock_bytes"):
        yield Finding(
            "memlock-limit", 0.6, "major", f"locked memory is limited to {_limit(low[0])}", lines_of(low),
            "Set memlock to unlimited for the launcher's daemon (LimitMEMLOCK=infinity of slurmd) and the user.", ["ulimit -l inside the job"],
        )  # fmt: skip
    elif low and (refused or stated):
        went_through = any(curve.points for curve in facts.curves)
        yield Finding(
            "memlock-limit", 0.92, "minor" if went_through else "fatal", f"locked memory is limited to {_limit(low[0])}",
            lines_of([*refused, *stated, *low, *(p for c in facts.curves for p in c.points[:1])]),
            "Set memlock to unlimited for the user and for the launcher's daemon (limits.conf, LimitMEMLOCK of slurmd or sshd, docker --ulimit memlock=-1).",
            ["ulimit -l inside the job, not in a login shell"],
        )  # fmt: skip
    elif refused and not unlimited:
        registering = any("reg_mr" in e.text or e.name.startswith("perftest") for e in refused)
        yield Finding(
            "memlock-limit", 0.6 if registering else 0.5, "fatal", "a verbs object could not be made for lack of (locked) memory", lines_of(refused),
            "Set memlock to unlimited for the user and for the launcher's daemon.", ["ulimit -l inside the job", "ibv_devinfo -v: max_cq, max_qp, max_mr"],
        )  # fmt: skip


def objects_exhausted(facts: Facts) -> Iterator[Finding]:
    """The HCA, or the memory of its objects, has run out of queue pairs, completion queues or memory regions.

    Fires when a verbs object cannot be made and locked memory is ruled out, or the job is an all-to-all over many peers. Weak when the
    limit of locked memory is unknown; silent when it is known to be low.
    """
    refused = _refused(facts)
    if not refused or _low_limits(facts):
        return
    unlimited = facts.all("system.memlock_unlimited") + _says_unlimited(facts)
    making = any(
        word in e.text
        for e in refused
        for word in ("create_qp", "create_cq", "create_srq", "alloc_pd", "(QP)", "(CQ)", "async reg mr", " QP ")
    )
    if unlimited or facts.all("kernel.nic_limit"):
        confidence = 0.85
    else:
        confidence = (
            0.55
            if any(w in e.text for e in refused for w in ("devx", "async reg mr", " QP "))
            else (0.45 if making else 0.3)
        )
    yield Finding(
        "ib-resource-exhaustion", confidence, "fatal", "the HCA gives out no more queue pairs, completion queues or memory regions",
        lines_of([*refused, *unlimited]),
        "Fewer connections: PXN on, fewer channels per peer (NCCL_NCHANNELS_PER_NET_PEER), NCCL_IB_QPS_PER_CONNECTION=1, hierarchical all-to-all; check the HCA's limits.",
        ["ibv_devinfo -v | grep -e max_qp -e max_cq -e max_mr", "rdma resource show"],
    )  # fmt: skip


def _says_unlimited(facts: Facts) -> list[Event]:
    return [e for e in facts.all("command.ulimit") if "unlimited" in e.text]


RULES = (locked_memory, objects_exhausted)
