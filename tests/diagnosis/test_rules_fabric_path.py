"""Paths between hosts that are both well: lists of host pairs, and one measurement repeated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .told import Case, Row, check, fires, fires_on, near_miss, near_miss_on, row, shown


def runs(*busbw: float, nodes: int = 2, mark: bool = False) -> Sequence[Row]:
    """Tables of one row each, 1 GiB."""
    return [
        (shown if mark else row)(
            "measurements", tool="nccl-tests", table_index=i, collective="all_reduce", size_bytes=2**30, ranks=8 * nodes, nodes=nodes,
            busbw_bytes_per_s=value * 1e9,
        )
        for i, value in enumerate(busbw)
    ]  # fmt: skip


CASES = (
    fires("pair_slow_though_its_ends_are_fast", "ecmp-collision", """
        > cn101,cn102 46.21
        > cn101,cn103 92.80
        > cn101,cn104 91.90
        > cn102,cn103 92.55
        > cn102,cn104 92.55
        cn103,cn104 91.70
    """, severity="major"),
    near_miss("pair_slow_though_its_ends_are_fast", "one host is slow with everybody", """
        cn101,cn102 46.21
        cn101,cn103 46.80
        cn101,cn104 45.90
        cn102,cn103 92.55
        cn102,cn104 92.55
        cn103,cn104 91.70
    """),
    near_miss("pair_slow_though_its_ends_are_fast", "the two were measured with nobody else", """
        cn101,cn102 46.21
        cn103,cn104 92.80
        cn103,cn105 91.90
        cn104,cn105 92.55
        cn104,cn106 92.55
    """),
    fires_on("bandwidth_alternates", "ecmp-collision", {"repeated.txt": runs(390, 201, 388, 391, 199, 205, mark=True)}, severity="major"),
    near_miss_on("bandwidth_alternates", "results spread evenly", {"repeated.txt": runs(390, 350, 310, 270, 230, 200)}),
    near_miss_on("bandwidth_alternates", "one slow run of six is no second level", {"repeated.txt": runs(390, 201, 388, 391, 389, 390)}),
    near_miss_on("bandwidth_alternates", "one node has no fabric", {"repeated.txt": runs(390, 201, 388, 391, 199, 205, nodes=1)}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
