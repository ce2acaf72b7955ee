"""One node among many that is slower: lists of host pairs, and DLRover's node check."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
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
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
