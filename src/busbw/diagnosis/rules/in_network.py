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


def manager_does_not_run(facts: Facts) -> Iterator[Finding]:
    """The aggregation manager cannot start, so no job gets a SHARP tree.

    Fires when sharp_am ends because its port is not that of the master subnet manager, or because it cannot take the fabric in.
    Silent on a manager that runs, and on libsharp's own failures, which have a rule of their own.
    """
    misplaced, failed = facts.all("sharp.manager_misplaced"), facts.all("sharp.manager_failed")
    if misplaced or failed:
        yield Finding(
            "sharp-unavailable", 0.88 if misplaced else 0.75, "major",
            "sharp_am runs on a host that is not the master subnet manager" if misplaced else "sharp_am cannot load the fabric", lines_of([*misplaced, *failed]),
            "Run sharp_am on the host of the master subnet manager (sminfo names its LID), with the routing engine that it is configured for.",
            ["sminfo; smpquery nodedesc LID", "systemctl status sharp_am on that host", "sharp_hello"],
        )  # fmt: skip


RULES = (sharp_not_in_use, manager_does_not_run)
