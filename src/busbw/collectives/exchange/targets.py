"""Runtimes that plans are written for: which format they read, and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from busbw.collectives.legality import Violation
from busbw.errors import InputError

__all__ = ["NEWEST", "TARGETS", "Target", "limit_violation", "target_named"]


@dataclass(frozen=True, slots=True)
class Target:
    """A runtime. A limit of None: it has none, or none that we know."""

    name: str
    format: str
    """`msccl-xml`, `mscclpp-json`, `busbw-json`."""
    what: str
    collectives: tuple[tuple[str, str], ...] = ()
    """Ours -> the word of the target."""
    operations: frozenset[str] | None = None
    """Names of operations that this release knows; None: all of its format."""
    steps_per_block: int | None = None
    blocks_per_rank: int | None = None
    blocks_per_channel: int | None = None
    chunks_per_step: int | None = None
    nodes_per_rank: int | None = None
    ranks: int | None = None
    channels: int | None = None
    index: int | None = None
    """Largest chunk index that its fields hold."""
    channels_per_block: int | None = None
    channels_per_operation: int | None = None
    operands_per_side: int | None = None
    barriers: int | None = None
    semaphores_per_operation: int | None = None

    def word(self, collective: str) -> str | None:
        """The target's word for a collective."""
        return dict(self.collectives).get(collective)

    @property
    def first_kind(self) -> bool:
        """Whether it reads MSCCL++ plans of the first kind."""
        return self.format == "mscclpp-json" and "rs" in (self.operations or ())


_XML_SHARED = (
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("all_reduce", "allreduce"),
    ("all_gather", "allgather"),
)
_XML_LIMITS: dict[str, Any] = {
    "blocks_per_channel": 32,
    "chunks_per_step": 71,
    "nodes_per_rank": 4095,
    "ranks": 1024,
    "index": 32767,
}
"""Source: ROCm/rccl 0cbce2a7, src/include/msccl/msccl_struct.h (MSCCL_MAX_COUNT 72, offsets int16), msccl_parser.h (MAX_NODES 4096, MAX_SUBS 1024);
microsoft/msccl b23e9cd5, src/include/devcomm.h, src/graph/xml.h."""
_PLAN_COLLECTIVES = (
    ("all_reduce", "allreduce"),
    ("all_gather", "allgather"),
    ("reduce_scatter", "reducescatter"),
    ("all_to_all", "alltoall"),
    ("custom", "custom"),
)
_PLAN_LIMITS: dict[str, Any] = {
    "blocks_per_rank": 132,  # its blocks wait for each other, so all must run at once: the SMs of an H100 (data sheet); no limit of the executor's
    "steps_per_block": 64,
    "channels_per_block": 16,
    "channels_per_operation": 8,
    "operands_per_side": 10,
    "barriers": 16,
    "semaphores_per_operation": 16,
}
"""Source: microsoft/mscclpp 1f5f065d, src/core/include/execution_common.hpp."""
_V1_OLDEST = {
    *("nop", "put", "signal", "wait", "flush", "get", "copy", "re", "rs", "rrc", "rrcs", "ppkt", "rspkt", "cpkt"),
}
_V1_06 = _V1_OLDEST | {"barrier", "pws", "pwsf", "tpkt", "rpkt", "glres"}
_V2_08 = {
    *("nop", "barrier", "copy", "put", "pws", "pwsf", "get", "signal", "wait", "rlxsignal", "rlxwait", "flush", "re", "res"),
    *("rre", "rres", "cpkt", "upkt", "ppkt", "rppkt", "repkt", "respkt", "glres", "sem_acquire", "sem_release", "pipeline"),
}  # fmt: skip
_V2_09 = _V2_08 | {"recpkt", "recspkt"}

TARGETS = {
    target.name: target
    for target in (
        Target(
            "msccl",
            "msccl-xml",
            "microsoft/msccl, a fork of NCCL 2.12.12",
            (*_XML_SHARED, ("reduce_scatter", "reduce_scatter"), ("all_to_all", "alltoall"), ("custom", "custom")),
            steps_per_block=256,
            blocks_per_rank=216,
            channels=32,  # MAXCHANNELS of NCCL 2.12
            **_XML_LIMITS,
        ),
        Target(
            "rccl",
            "msccl-xml",
            "the MSCCL interpreter of ROCm/rccl and Azure/msccl",
            (
                *_XML_SHARED,
                ("reduce_scatter", "reducescatter"),
                ("all_to_all", "alltoall"),
                ("gather", "gather"),
                ("scatter", "scatter"),
            ),
            steps_per_block=64,
            blocks_per_rank=64,
            channels=128,  # MAXCHANNELS of RCCL, src/include/device.h; "from memory, unverified"
            **_XML_LIMITS,
        ),
        *(
            Target(
                f"mscclpp-{release}",
                "mscclpp-json",
                f"the executor of microsoft/mscclpp {release}, plans of the {generation} kind",
                _PLAN_COLLECTIVES,
                operations=frozenset(operations) if operations is not None else None,
                **_PLAN_LIMITS,
            )
            for release, generation, operations in (
                ("0.5", "first", _V1_OLDEST),
                ("0.6", "first", _V1_06),
                ("0.7", "first", _V1_06 | {"rppkt"}),
                ("0.8", "second", _V2_08),
                ("0.9", "second", _V2_09),
                ("0.10", "second", _V2_09 | {"gstore", "gstorepkt"}),
            )
        ),
        Target("busbw", "busbw-json", "our own format: all that a plan can say"),
    )
}


NEWEST = {"mscclpp": "mscclpp-0.10"}
"""Runtimes of several releases: the one that is meant where a file is written; where one is read, it says itself which kind it is of."""


def target_named(name: str) -> Target:
    """The target with a name; of a runtime without a release, the newest. Raises InputError for one that is not known."""
    name = NEWEST.get(name, name)
    if name not in TARGETS:
        raise InputError(f"no target {name!r}; there are {', '.join((*TARGETS, *NEWEST))}")
    return TARGETS[name]


def limit_violation(target: Target, what: str, has: int, limit: int | None, where: str) -> list[Violation]:
    """A violation `target-limit` if there is a limit and it is exceeded."""
    if limit is None or has <= limit:
        return []
    return [Violation("target-limit", f"{where} has {has} {what}; {target.name} takes {limit} at most")]
