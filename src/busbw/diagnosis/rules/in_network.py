"""Reductions in the switch: SHARP, CollNet."""

from __future__ import annotations

from collections.abc import Iterator

from busbw.diagnosis.facts import Facts, lines_of
from busbw.diagnosis.findings import Finding
from busbw.diagnosis.rules.shared import active

__all__ = ["RULES"]


def sharp_not_in_use(facts: Facts) -> Iterator[Finding]:
    """SHARP was asked for and cannot be used; NCCL goes on with rings and trees.

    Fires on failures of libsharp and of NCCL's SHARP plugin. Minor unless the job stops over it. Silent when SHARP was not asked for.
    """
    failed = facts.all("sharp.failed")
    if failed:
        yield Finding(
            "sharp-unavailable", 0.82, "minor", "in-network reduction (SHARP) could not be set up", lines_of([*failed, *active(facts, "NCCL_COLLNET_ENABLE", "SHARP_COLL_ENABLE_SAT")]),
            "Check the aggregation manager (sharp_am), that the switches' firmware supports streaming aggregation, and that no other job holds the tree; or set NCCL_COLLNET_ENABLE=0.",
            ["sharp_hello", "systemctl status sharp_am on the subnet manager's host"],
        )  # fmt: skip


RULES = (sharp_not_in_use,)
