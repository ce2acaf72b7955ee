"""Limits and progress hold from the first rank that is read to the last event."""

import numpy as np
import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.lowering import plan_of
from busbw.errors import InputError
from busbw.hardware.fabrics import LinkRates, SingleSwitch
from busbw.simulation import Limits, TaskGraph, simulate
from busbw.simulation.limits import Watch

STAR = SingleSwitch(8, LinkRates(50e9, 50e9))
RING = LIBRARY["ring_all_reduce"]().bind(8)


def graph():
    column = np.zeros(1, np.int64)
    none = np.empty(0, np.int64)
    return TaskGraph(8, column + 1, column, column + 1, column + 8, column, column - 1, none, none, ("a",))


@pytest.mark.parametrize("what", [RING, plan_of(RING), graph()], ids=["schedule", "plan", "graph"])
@pytest.mark.parametrize(
    ("limits", "said"), [(Limits(time_s=0.0), "time limit of 0 s"), (Limits(memory_bytes=1), "memory limit of 0 MB")]
)
def test_a_limit_is_looked_at_before_anything_runs(what, limits, said):
    """What is known then is nothing, so it is an error that names the limit and what was done."""
    with pytest.raises(
        InputError, match=f"{said} reached before anything ran, while .* Simulate fewer ranks, or raise the limit"
    ):
        simulate(what, STAR, size_bytes=8, limits=limits)


def test_what_channels_will_take_counts_before_they_are_made():
    """300 bytes for each of 56 pairs of an exchange of all with all do not fit into what is left."""
    from busbw.simulation.limits import _resident_bytes

    limits = Limits(memory_bytes=_resident_bytes() + 10_000)
    with pytest.raises(InputError, match="while 56 channels were laid out"):
        simulate(LIBRARY["direct_all_to_all"]().bind(8), STAR, size_bytes=8, limits=limits, fold=False)


def test_progress_names_what_is_done_before_the_run():
    """A stage, no events, no simulated time."""
    told = []
    watch = Watch(Limits(), told.append)
    watch.begun -= 1.0
    watch.look("ways were computed")
    watch.look("not told again so soon")
    assert [(at.stage, at.events, at.simulated_s) for at in told] == [("ways were computed", 0, 0.0)]
