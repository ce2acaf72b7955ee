"""Collectives between processes give what numpy gives, for every type, operation, size and placement; and a lost rank is named."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from busbw.execution import Communicator, GaveUpError, run_threads
from busbw.execution.cuda_driver import CudaUnavailableError
from busbw.execution.shared_memory import SharedMemoryError, map_all

from .processes import outcomes_of, run_ranks

SIZES = (0, 1, 3, 4, 5, 63, 1000, 32768, 32769, 100_003)
"""Elements: none, less than a vector, odd tails, and around and beyond a slot of 128 KiB."""
TYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")
OPERATIONS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def given(rank: int, size: int, dtype: str) -> np.ndarray:
    """Small whole numbers, so that sums are exact in every type; signs and order differ by rank."""
    values = (np.arange(size) * (rank + 1) + rank) % 3
    return values.astype(dtype)


def reduced(ranks: int, size: int, dtype: str, op: str) -> np.ndarray:
    total = given(0, size, dtype)
    for rank in range(1, ranks):
        total = OPERATIONS[op](total, given(rank, size, dtype))
    return total


def all_reduces(comm: Communicator) -> None:
    for size in SIZES:
        for dtype in TYPES:
            for op in OPERATIONS:
                mine = given(comm.rank, size, dtype)
                np.testing.assert_array_equal(comm.all_reduce(mine, op=op), reduced(comm.ranks, size, dtype, op))
                np.testing.assert_array_equal(mine, given(comm.rank, size, dtype))  # the source is left alone
                comm.all_reduce(mine, mine, op)  # in place
                np.testing.assert_array_equal(mine, reduced(comm.ranks, size, dtype, op))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_reduce_is_numpys_reduction_over_ranks(ranks):
    run_ranks(ranks, all_reduces)


def on_shared_memory(comm: Communicator) -> None:
    window = comm.shared(1 << 20)
    for size in SIZES:
        for start in (0, 1):  # at a vector's alignment, and off it
            floats = window.array.view(np.float32)
            source, target = floats[start : start + size], floats[120_000 + start : 120_000 + start + size]
            source[:] = given(comm.rank, size, "float32")
            comm.barrier()
            comm.all_reduce(source, target)
            np.testing.assert_array_equal(target, reduced(comm.ranks, size, "float32", "sum"))
            comm.all_reduce(source, source, "max")
            np.testing.assert_array_equal(source, reduced(comm.ranks, size, "float32", "max"))
            comm.barrier()


@pytest.mark.parametrize("ranks", [2, 3])
def test_on_shared_memory_the_result_is_the_same(ranks):
    run_ranks(ranks, on_shared_memory)


def others(comm: Communicator) -> None:
    ranks, rank = comm.ranks, comm.rank
    for size in SIZES:
        whole = [given(r, size * ranks, "float32") for r in range(ranks)]
        mine = whole[rank]
        part = slice(rank * size, (rank + 1) * size)
        np.testing.assert_array_equal(comm.reduce_scatter(mine), reduced(ranks, size * ranks, "float32", "sum")[part])
        np.testing.assert_array_equal(comm.all_to_all(mine), np.concatenate([other[part] for other in whole]))
        np.testing.assert_array_equal(comm.all_gather(mine), np.concatenate(whole))
        for root in (0, ranks - 1):
            received = comm.broadcast(mine if rank == root else np.empty_like(mine), root=root)
            np.testing.assert_array_equal(received, whole[root])
        # In place, as NCCL has it: the part lies where it belongs in the whole.
        gathered = np.empty(size * ranks, np.float32)
        gathered[part] = mine[part]
        comm.all_gather(gathered[part], gathered)
        np.testing.assert_array_equal(
            gathered, np.concatenate([w[r * size : (r + 1) * size] for r, w in enumerate(whole)])
        )
        scattered = mine.copy()
        comm.reduce_scatter(scattered, scattered[part])
        np.testing.assert_array_equal(scattered[part], reduced(ranks, size * ranks, "float32", "sum")[part])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_end_where_they_belong(ranks):
    run_ranks(ranks, others)


def averages(comm: Communicator) -> None:
    mine = np.full(100, comm.rank + 1, np.float32)
    np.testing.assert_array_equal(comm.all_reduce(mine, op="avg"), np.full(100, (comm.ranks + 1) / 2, np.float32))
    whole = np.full(100, comm.rank + 1, np.int32)
    assert comm.all_reduce(whole, op="avg")[0] == sum(range(1, comm.ranks + 1)) // comm.ranks


def test_an_average_is_the_sum_over_the_number_of_ranks():
    run_ranks(2, averages)


def brain_floats(comm: Communicator) -> np.ndarray:
    """1 + 2^-7 and 1: their sum, 2 + 2^-7, lies between two bfloat16 and goes to the even one, 2."""
    bits = np.array([0x3F81 if comm.rank else 0x3F80, 0x7FC0, 0xC000], np.uint16)  # the third: -2 + -2
    return comm.all_reduce(bits, dtype="bfloat16")


def test_bfloat16_rounds_to_the_nearest_even():
    for result in run_ranks(2, brain_floats):
        assert result[0] == 0x4000
        assert (result[1] & 0x7FFF) > 0x7F80  # NaN
        assert result[2] == 0xC080  # -4


def bits_of_a_sum(comm: Communicator) -> bytes:
    rng = np.random.default_rng(comm.rank)
    return comm.all_reduce(rng.standard_normal(70_001).astype(np.float32)).tobytes()


def test_all_ranks_get_the_same_bits_in_the_order_of_ranks():
    results = run_ranks(3, bits_of_a_sum)
    parts = [np.random.default_rng(rank).standard_normal(70_001).astype(np.float32) for rank in range(3)]
    assert set(results) == {((parts[0] + parts[1]) + parts[2]).tobytes()}


def dies_in_the_second_call(comm: Communicator) -> str:
    comm.all_reduce(np.ones(8, np.float32))
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(GaveUpError) as raised:
        comm.all_reduce(np.ones(8, np.float32))
    with pytest.raises(GaveUpError, match="had given up before"):
        comm.barrier()
    return str(raised.value)


def test_a_rank_that_was_killed_is_named_by_the_others_and_leaves_nothing_behind():
    outcomes = outcomes_of(2, dies_in_the_second_call, wait_s=5)
    assert outcomes[1] is None
    assert outcomes[0] is not None
    said, raised = outcomes[0]
    assert raised is None
    found = re.search(r"waited 5 s for a message of rank 1: number (\d+) was due, (\d+) had come", said)
    assert found is not None, said
    assert int(found[1]) == int(found[2]) + 1
    assert not list(Path("/dev/shm").glob(f"busbw-test-{os.getpid()}-dies*"))


def test_a_rank_that_never_comes_is_named():
    with pytest.raises(SharedMemoryError, match=r"rank 1 of alone-\d+ did not come"):
        Communicator(2, rank=0, name=f"alone-{os.getpid()}", wait_s=0.2)
    assert not list(Path("/dev/shm").glob(f"busbw-alone-{os.getpid()}*"))


def test_a_name_that_is_in_use_is_refused(tmp_path):
    name = f"twice-{os.getpid()}"
    hidden = Path(f"/dev/shm/busbw-{name}-0.new")
    hidden.touch()
    try:
        with pytest.raises(SharedMemoryError, match="another job has this name"):
            map_all(name, 0, 1, 64, 0.1)
    finally:
        hidden.unlink()


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "x" * 201])
def test_a_name_is_no_path(name):
    with pytest.raises(SharedMemoryError, match="is no name"):
        map_all(name, 0, 1, 64, 0.1)


def test_wrong_use_says_what_is_wrong():
    comm = Communicator(1, rank=0, name=f"wrong-{os.getpid()}", wait_s=1)
    ones = np.ones(6, np.float32)
    for call, said in (
        (lambda: comm.all_reduce(ones[::2]), "not contiguous"),
        (
            lambda: comm.all_reduce(ones, np.ones(5, np.float32)),
            "target holds 5 elements of 4 bytes, source 6 elements of 4 bytes",
        ),
        (lambda: comm.all_reduce(ones, op="median"), "no operation 'median'"),
        (lambda: comm.all_reduce(np.ones(3, np.complex64)), "no reduction of elements of format 'Zf'"),
        (lambda: comm.all_to_all(ones, ones), "overlap"),
        (lambda: comm.broadcast(ones, root=1), "root 1 is none of the ranks 0..0"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def moves_between_some(comm: Communicator) -> None:
    ranks, rank = comm.ranks, comm.rank
    for size in (0, 1, 5000, 70_001):
        mine = given(rank, size, "float32")
        every = [given(r, size, "float32") for r in range(ranks)]
        for root in (0, ranks - 1):
            summed, gathered = comm.reduce(mine, op="max", root=root), comm.gather(mine, root=root)
            if rank != root:
                assert summed is None and gathered is None
            else:
                np.testing.assert_array_equal(summed, reduced(ranks, size, "float32", "max"))
                np.testing.assert_array_equal(gathered, np.concatenate(every))
            part = comm.scatter(np.concatenate(every), np.empty(size, np.float32), root)
            np.testing.assert_array_equal(part, mine)
        got = comm.send_recv(mine, (rank + 1) % ranks, np.empty(size, np.float32), (rank - 1) % ranks)
        np.testing.assert_array_equal(got, every[rank - 1])
        sent = [(rank + 1) * (peer + 2) for peer in range(ranks)]  # rank r sends (r + 1)(p + 2) elements to p
        due = [(peer + 1) * (rank + 2) for peer in range(ranks)]
        target = comm.all_to_all_v(np.full(sum(sent), rank, np.int32), sent, np.empty(sum(due), np.int32), due)
        np.testing.assert_array_equal(target, np.repeat(np.arange(ranks), due))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_roots_and_pairs_get_what_is_theirs_also_between_threads(ranks):
    run_threads(ranks, moves_between_some)


def test_between_processes_too():
    run_ranks(3, moves_between_some)


def test_without_reading_peers_memory_the_result_is_the_same():
    """Containers may forbid it: then large vectors pass through pipes."""
    name = f"apart-{os.getpid()}"

    def body(rank: int) -> Communicator:
        return Communicator(2, rank=rank, name=name, attach=False)

    with ThreadPoolExecutor(2) as pool:
        ranks = list(pool.map(body, range(2)))
        assert not any(comm.reads_peers_memory for comm in ranks)
        for call in (all_reduces, others):
            list(pool.map(call, ranks))


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("sim", "runs a plan in the simulated memory"),
        ("tpu", "there are cpu, sim, cuda, mpi"),
    ],
)
def test_a_backend_that_is_not_to_be_had_says_what_is_missing(backend, said):
    with pytest.raises(ValueError, match=said):
        Communicator(2, backend, rank=0, name="nobody")


def test_on_gpus_the_error_names_what_is_missing(monkeypatch):
    """Without the package cuda-bindings, as where no extra was installed."""
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CudaUnavailableError, match=r"cuda-bindings.*pip install 'busbw\[cuda\]'"):
        Communicator(2, backend="cuda", rank=0, name="nobody")


@pytest.mark.parametrize(("first", "second"), [(10, 5010), (1000, 501_000), (5010, 10)])
def test_a_rank_that_was_called_for_another_size_is_noticed_and_not_read(first, second):
    """float32: 40 bytes go through pipes, from 12 KiB on the peer's memory would be read, beyond what it holds."""
    with pytest.raises(GaveUpError, match=r"sizes and types must be the same|of rank"):
        run_threads(2, lambda comm: comm.all_reduce(np.ones((first, second)[comm.rank], np.float32)), wait_s=1)


def test_source_and_target_overlap_as_in_place_or_not_at_all():
    def body(comm: Communicator) -> None:
        memory = np.zeros(64)
        for call in (
            lambda: comm.all_reduce(memory[:8], memory[1:9]),
            lambda: comm.reduce_scatter(memory[:8], memory[2:6]),
            lambda: comm.all_gather(memory[2:6], memory[:8]),
            lambda: comm.broadcast(memory[:8], memory[1:9]),
        ):
            with pytest.raises(ValueError, match="source and target overlap"):
                call()
        part = slice(4 * comm.rank, 4 * comm.rank + 4)
        comm.all_reduce(memory[:8], memory[:8])
        comm.reduce_scatter(memory[:8], memory[:8][part])
        comm.all_gather(memory[:8][part], memory[:8])

    run_threads(2, body, wait_s=5)


def test_what_is_no_number_of_bytes_alike_everywhere_is_refused():
    """Addresses of objects, parts of elements, elements that are read as others."""

    def body(comm: Communicator) -> None:
        objects = np.array([{}, {}], dtype=object)
        fields = np.zeros(2, dtype=[("O", "<i4"), ("a", "<f8")])
        assert comm.all_gather(fields).size == 4  # a field may have that name
        for call, said in (
            (lambda: comm.all_gather(objects), "Python objects"),
            (lambda: comm.send_recv(objects, comm.rank, objects.copy(), comm.rank), "Python objects"),
            (lambda: comm.all_to_all(np.ones(11)), "no equal part"),
            (lambda: comm.all_gather(np.ones(3), np.ones(12, np.float32)), "12 elements of 4 bytes"),
        ):
            with pytest.raises(ValueError, match=said):
                call()

    run_threads(2, body, wait_s=5)


@pytest.mark.parametrize("wait_s", [0, -1, float("nan")])
def test_a_wait_lasts_some_time(wait_s):
    with pytest.raises(ValueError, match="a wait lasts some seconds"):
        run_threads(2, lambda comm: comm.rank, wait_s=wait_s)
    assert run_threads(2, lambda comm: int(comm.all_reduce(np.array([1]))[0]), wait_s=float("inf")) == [2, 2]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda comm: comm.shared(0), "at least one is needed"),
        (lambda comm: comm.shared(64 * (comm.rank + 1)), "all must ask for the same"),
        (lambda comm: comm.broadcast(np.ones(3), root=-1), "root -1 is none of the ranks"),
        (lambda comm: comm.reduce(np.ones(3), root=-1), "root -1 is none of the ranks"),
    ],
)
def test_a_call_that_no_rank_can_follow_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        run_threads(2, call, wait_s=5)


def test_the_others_end_at_once_when_a_thread_raises():
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            raise KeyError("lost")
        comm.barrier()

    begun = time.monotonic()
    with pytest.raises(KeyError, match="lost"):
        run_threads(3, body, wait_s=600)
    assert time.monotonic() - begun < 300


_INTERRUPTED = """
import os, signal, threading
from busbw.execution import run_threads
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
run_threads(2, lambda comm: comm.rank or comm.barrier(), wait_s=600)
"""


def test_an_interrupt_ends_threads_that_wait():
    """Python that ends under a thread in native code aborts: status -SIGABRT."""
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode in (-signal.SIGINT, 1), ended.stderr
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")


_IN_A_NAMESPACE = """
import os, sys
import numpy as np
from busbw.execution import Communicator
comm = Communicator(2, rank=int(sys.argv[1]), name=sys.argv[2], wait_s=30)
print(os.getpid(), comm.reads_peers_memory, comm.all_reduce(np.ones(10_000)).sum())
"""


def test_processes_of_two_containers_may_have_the_same_number():
    """Both are process 1 of a namespace: neither may take the other's addresses for its own."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no namespaces may be made here")
    ranks = [
        subprocess.Popen(
            [*unshare, sys.executable, "-c", _IN_A_NAMESPACE, str(rank), f"namespaces-{os.getpid()}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["1 False 20000.0\n"] * 2


@pytest.mark.parametrize("ranks", [3, 13])
def test_ranks_that_outnumber_cores_pass_a_sum_on(ranks: int) -> None:
    """A vector longer than a round's pieces (8 of 129 KiB), and one of a length that nothing divides, in place; 13 ranks are more than a round has pieces.

    Rank r gives i % 97 + r: the sum is ranks (i % 97) + ranks (ranks - 1) / 2, exact in float32.
    """

    def body(comm: Communicator) -> bool:
        comm._core.set_cores(1)
        for size in (300_001, 2_053, 2_400):
            given = np.arange(size, dtype=np.float32) % 97
            values = given + comm.rank
            comm.all_reduce(values, values)
            if not (values == given * ranks + ranks * (ranks - 1) / 2).all():
                return False
        return True

    assert run_threads(ranks, body) == [True] * ranks
