"""A run beside its own simulation."""

from __future__ import annotations

import pytest

from .told import Case, Row, check, fires_on, near_miss_on, row, shown

SIZES = (1 << 18, 1 << 20)


def run(tool: str, factor: float, make=shown, ranks: int = 8) -> list[Row]:
    """An all_reduce of two sizes, at 6 MB/s over `factor`."""
    return [
        make("measurements", tool=tool, table_index=0, collective="all_reduce", size_bytes=size, ranks=ranks, time_ns=round(size / 6e6 * 1e9 * factor))
        for size in SIZES
    ]  # fmt: skip


def pairs(share: float, shown_pairs: int) -> list[Row]:
    """Every pair of eight hosts once; host5's link has a share of the rate. Shown are the first of its own, and two of its partners' others."""
    rows, own, others = [], 0, 0
    for a in range(8):
        for b in range(a + 1, 8):
            mine = 5 in (a, b)
            own, others = own + mine, others + (not mine)
            make = shown if (mine and own <= shown_pairs) or (not mine and others <= 2 and shown_pairs) else row
            value = 6e6 * (share if mine else 1.0)
            rows.append(make("pairs", quantity="bandwidth", src=f"host{a}:eth0", dst=f"host{b}:eth0", value=value, unit="bytes/s"))  # fmt: skip
    return rows


CASES = (
    fires_on("slower_than_simulated", "link-rate-degraded", {
        "measured": run("busbw run", 2.0), "simulated": run("busbw simulate", 1.0), "pairs": pairs(0.5, 6),
    }, severity="major", why="it waits for the link of host5, at half its rate"),
    fires_on("slower_than_simulated", "link-rate-degraded", {
        "measured": run("busbw run", 2.0), "simulated": run("busbw simulate", 1.0),
    }, severity="minor", why="no pairs say why"),
    fires_on("slower_than_simulated", "link-rate-degraded", {
        "measured": run("busbw run", 4.0), "simulated": run("busbw simulate", 1.0), "pairs": pairs(0.75, 0),
    }, severity="minor", why="a link at three quarters does not make it four times as slow"),
    near_miss_on("slower_than_simulated", "a run within a tenth of its simulation", {
        "measured": run("busbw run", 1.1), "simulated": run("busbw simulate", 1.0), "pairs": pairs(0.5, 0),
    }),
    near_miss_on("slower_than_simulated", "simulated for other ranks", {
        "measured": run("busbw run", 2.0), "simulated": run("busbw simulate", 1.0, ranks=16),
    }),
    near_miss_on("slower_than_simulated", "two simulations that differ: which algorithm ran is not known", {
        "measured": run("busbw run", 2.0), "simulated": run("busbw simulate", 1.0), "again": run("busbw simulate", 1.9),
    }),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
