"""One node among many that is slower: lists of host pairs, and DLRover's node check."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .told import Case, Row, check, fires, fires_on, near_miss, near_miss_on, row, shown


def matrix(gpus: int, rate: Callable[[int, int], float], slow: int | None = None) -> list[Row]:
    """Copies between every two GPUs, GB/s. Shown are the first eight pairs of the slow one, of which three GPUs have six, and two of the others."""
    rows, others = [], 0
    for a in range(gpus):
        for b in range(gpus):
            if a != b:
                mine = slow is not None and slow in (a, b)
                others += slow is not None and not mine
                make = shown if mine or (0 < others <= 2 and not mine) else row
                rows.append(
                    make(
                        "pairs",
                        tool="nvbandwidth",
                        quantity="device_to_device_memcpy_write_ce",
                        src=str(a),
                        dst=str(b),
                        value=rate(a, b) * 1e9,
                        unit="bytes/s",
                    )
                )
    return rows  # fmt: skip


def pairs_of_hosts(rate):
    """Every pair of nine hosts, in GB/s; those that involve host 4 are evidence, and the first two of the others."""
    lines = []
    for a in range(9):
        for b in range(a + 1, 9):
            mark = "> " if rate is not None and (4 in (a, b) or (a == 0 and b <= 2)) else ""
            wobble = (7 * a + 3 * b) % 5 * 0.4
            lines.append(f"{mark}node{a},node{b} {(rate if rate and 4 in (a, b) else 48.0) + wobble:.2f}")
    return "\n".join(lines)


CASES = (
    fires("slow_by_a_little", "slow-node", pairs_of_hosts(42.5)),
    near_miss("slow_by_a_little", "all hosts reach the same within two percent", pairs_of_hosts(None)),
    fires("slow_in_every_pair", "slow-node", """
        > cn101,cn102 46.21
        > cn103,cn104 92.80
        > cn101,cn104 45.90
        > cn102,cn103 92.55
        cn105,cn106 91.70
    """),
    near_miss("slow_in_every_pair", "all pairs are alike", """
        cn101,cn102 92.21
        cn103,cn104 92.80
        cn101,cn104 91.90
        cn102,cn103 92.55
    """),
    near_miss("slow_in_every_pair", "all pairs are slow alike: no host is behind the others", """
        cn101,cn102 11.21
        cn103,cn104 11.80
        cn101,cn104 11.90
    """),
    fires("slow_in_every_round", "slow-node", """
        > [2026-03-02 11:20:01] The elapsed time of nodes are {0: 21.3, 1: 20.9, 2: 96.1, 3: 22.0}
        > [2026-03-02 11:23:40] The elapsed time of nodes are {0: 20.8, 1: 21.1, 2: 97.4, 3: 95.2}
    """),
    near_miss("slow_in_every_round", "slow beside one partner only, fast in the other round", """
        [2026-03-02 11:20:01] The elapsed time of nodes are {0: 21.3, 1: 20.9, 2: 96.1, 3: 95.0}
        [2026-03-02 11:23:40] The elapsed time of nodes are {0: 20.8, 1: 96.0, 2: 22.0, 3: 21.2}
    """),
    near_miss("slow_in_every_pair", "both hosts of the slow pair are fast with all others: the path is slow", """
        cn101,cn102 46.21
        cn101,cn103 92.80
        cn101,cn104 91.90
        cn102,cn103 92.55
        cn102,cn104 92.55
        cn103,cn104 91.70
    """),
    fires_on("slow_gpu_in_a_matrix", "nvlink-down", {"nvbandwidth.txt": matrix(4, lambda a, b: 190.0 if 2 in (a, b) else 390.0, slow=2)}, severity="major"),
    fires_on("slow_gpu_in_a_matrix", "pcie-link-degraded", {"nvbandwidth.txt": matrix(4, lambda a, b: 6.0 if 2 in (a, b) else 26.0, slow=2)}, why="without NVLink"),
    near_miss_on("slow_gpu_in_a_matrix", "two sockets: the topology", {"nvbandwidth.txt": matrix(4, lambda a, b: 26.0 if a // 2 == b // 2 else 13.0)}),
    near_miss_on("slow_gpu_in_a_matrix", "all alike", {"nvbandwidth.txt": matrix(4, lambda a, b: 390.0)}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
