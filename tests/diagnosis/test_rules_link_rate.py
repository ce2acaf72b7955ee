"""Network links below their rate: ibstat, ibv_devinfo."""

from __future__ import annotations

import pytest

from .told import Case, check, fires, near_miss

CASES = (
    fires("port_below_siblings", "link-rate-degraded", """
        CA 'mlx5_0'
                Port 1:
                        State: Active
                        Physical state: LinkUp
        >                 Rate: 400
        CA 'mlx5_1'
                Port 1:
                        State: Active
                        Physical state: LinkUp
        >                 Rate: 200
        CA 'mlx5_2'
                Port 1:
                        State: Active
                        Physical state: LinkUp
        >                 Rate: 400
    """, severity="major"),
    near_miss("port_below_siblings", "all run at one rate", """
        CA 'mlx5_0'
                        State: Active
                        Rate: 400
        CA 'mlx5_1'
                        State: Active
                        Rate: 400
    """),
    near_miss("port_below_siblings", "an unused port shows its lowest rate", """
        CA 'mlx5_0'
                        State: Active
                        Rate: 400
        CA 'mlx5_1'
                        State: Down
                        Physical state: Disabled
                        Rate: 40
        CA 'mlx5_2'
                        State: Active
                        Rate: 400
    """),
    fires("port_down", "link-rate-degraded", """
        CA 'mlx5_0'
        >                 State: Active
        >                 Physical state: LinkUp
        CA 'mlx5_1'
                        State: Down
        >                 Physical state: Polling
    """, severity="minor"),
    near_miss("port_down", "an unused port is disabled", """
        CA 'mlx5_0'
                        State: Active
                        Physical state: LinkUp
        CA 'mlx5_1'
                        State: Down
                        Physical state: Disabled
    """),
    near_miss("port_down", "no port is active", """
        CA 'mlx5_1'
                        State: Down
                        Physical state: Polling
    """),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule(case: Case):
    check(case)
