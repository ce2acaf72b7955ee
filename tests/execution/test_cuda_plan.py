"""Plans on GPUs without one: the tables that the interpreter reads, made for the GPU, are run by the interpreter for CPUs; see `fake_cuda`."""

from __future__ import annotations

import numpy as np
import pytest

from busbw.collectives import plan_of
from busbw.collectives.algorithms import ring_all_gather, ring_all_reduce
from busbw.execution import GaveUpError
from busbw.execution.cuda import CudaCommunicator, each_rank
from busbw.execution.cuda_plan import CudaPlanRun

from .fake_cuda import fake_toolkit


def values(rank: int, size: int) -> np.ndarray:
    return ((np.arange(size) * (rank + 1) + rank) % 3).astype(np.float32)


@pytest.mark.parametrize("size", [1, 1000, 70_001])
def test_a_ring_on_gpus_gives_what_numpy_gives_every_time(size):
    tools = fake_toolkit(devices=3)
    ranks = CudaCommunicator.local([0, 1, 2], wait_s=20, toolkit=tools)
    plan = plan_of(ring_all_reduce().bind(3))
    total = sum(values(rank, size) for rank in range(3))

    def body(comm: CudaCommunicator) -> None:
        run = CudaPlanRun(comm, plan, size)
        np.testing.assert_array_equal(run(values(comm.rank, size)), total)
        np.testing.assert_array_equal(run(values(comm.rank, size), "avg"), total / np.float32(3))
        np.testing.assert_array_equal(
            run(values(comm.rank, size), "max"), np.maximum.reduce([values(r, size) for r in range(3)])
        )

    each_rank(ranks, body)
    for one in ranks:
        one.close()
    assert tools.driver.held() == []


def test_an_all_gather_is_in_the_order_of_ranks():
    ranks = CudaCommunicator.local([0, 0], wait_s=20, toolkit=fake_toolkit())
    plan = plan_of(ring_all_gather().bind(2))
    found = each_rank(ranks, lambda comm: CudaPlanRun(comm, plan, 5)(values(comm.rank, 5)))
    for result in found:
        np.testing.assert_array_equal(result, np.concatenate([values(0, 5), values(1, 5)]))


def test_a_rank_that_does_not_run_is_named():
    ranks = CudaCommunicator.local([0, 1], wait_s=0.2, toolkit=fake_toolkit(devices=2))
    plan = plan_of(ring_all_reduce().bind(2))
    runs = each_rank(ranks, lambda comm: CudaPlanRun(comm, plan, 10))
    with pytest.raises(GaveUpError, match="of rank 1"):
        runs[0](values(0, 10))


def test_what_cannot_run_is_refused():
    (comm,) = CudaCommunicator.local([0], toolkit=fake_toolkit())
    with pytest.raises(ValueError, match="is for 2 ranks, the communicator has 1"):
        CudaPlanRun(comm, plan_of(ring_all_reduce().bind(2)), 4)
    with pytest.raises(ValueError, match="no arithmetic of float8_e4m3"):
        CudaPlanRun(comm, plan_of(ring_all_reduce().bind(1)), 4, "float8_e4m3")
