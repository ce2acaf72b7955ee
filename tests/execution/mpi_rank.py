"""A rank that mpiexec starts: `mpiexec -n N python -m tests.execution.mpi_rank N`. Prints "right" if every collective gave numpy's result."""

import sys

import numpy as np

from busbw.execution import Communicator


def main() -> None:
    """All ranks: window memory and private buffers, sizes on both sides of every threshold, in place and not."""
    ranks = int(sys.argv[1])
    comm = Communicator(ranks, backend="mpi", wait_s=60)
    window = comm.shared(1 << 20).array.view(np.int32)
    given = [np.arange(100_003, dtype=np.int32) * (rank + 1) for rank in range(ranks)]
    for count in (0, 1, 13, 4099, 100_003):
        mine, total = given[comm.rank][:count].copy(), sum(one[:count] for one in given)
        assert np.array_equal(comm.all_reduce(mine), total)
        window[:count] = mine
        assert np.array_equal(comm.all_reduce(window[:count], window[:count]), total)
        assert np.array_equal(comm.all_gather(mine), np.concatenate([one[:count] for one in given]))
        root = comm.broadcast(mine, np.empty_like(mine), root=ranks - 1)
        assert np.array_equal(root, given[-1][:count])
    comm.barrier()
    print("right", flush=True)


if __name__ == "__main__":
    main()
