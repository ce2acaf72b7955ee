"""CUDA's host side without a GPU: arguments, windows between processes, order of calls, what is left behind. The driver is `fake_cuda`."""

from __future__ import annotations

import multiprocessing
import os
import queue
import re
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from busbw.execution import Communicator, GaveUpError
from busbw.execution.cuda import CudaCommunicator, Toolkit, each_rank
from busbw.execution.cuda_driver import CudaError
from busbw.execution.cuda_kernels import KERNELS, Entry
from busbw.execution.shared_memory import SharedMemoryError

from .fake_cuda import FakeDriver, fake_toolkit

SIZES = (0, 1, 5, 1000, 40_003)


def values(rank: int, size: int, dtype: str = "float32") -> np.ndarray:
    """Small whole numbers: sums are exact in every type."""
    return ((np.arange(size) * (rank + 1) + rank) % 3).astype(dtype)


def local(devices: list[int], slot_bytes: int = 4096, **of: Any) -> tuple[list[CudaCommunicator], FakeDriver]:
    tools = fake_toolkit(devices=max(devices) + 1, **of)
    driver = tools.driver
    assert isinstance(driver, FakeDriver)
    return CudaCommunicator.local(devices, wait_s=20, slot_bytes=slot_bytes, toolkit=tools), driver


def closed(ranks: list[CudaCommunicator]) -> None:
    for one in ranks:
        one.close()


@pytest.mark.parametrize("devices", [[0], [0, 1], [0, 0, 1]])
def test_collectives_of_host_arrays_are_numpys(devices):
    ranks, driver = local(devices)
    n = len(devices)

    def body(comm: CudaCommunicator) -> None:
        for size in SIZES:
            whole = [values(r, size * n) for r in range(n)]
            mine, part = whole[comm.rank], slice(comm.rank * size, (comm.rank + 1) * size)
            total = np.sum(whole, axis=0, dtype=np.float32)
            np.testing.assert_array_equal(comm.all_reduce(mine), total)
            np.testing.assert_array_equal(comm.all_reduce(mine, op="avg"), total / np.float32(n))
            np.testing.assert_array_equal(comm.reduce_scatter(mine), total[part])
            np.testing.assert_array_equal(comm.all_gather(mine), np.concatenate(whole))
            np.testing.assert_array_equal(comm.all_to_all(mine), np.concatenate([one[part] for one in whole]))
            received = mine.copy()
            comm.broadcast(received, root=n - 1)
            np.testing.assert_array_equal(received, whole[n - 1])
            comm.barrier()

    each_rank(ranks, body)
    closed(ranks)
    assert driver.held() == []


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "uint64"])
def test_types_and_operations_reach_the_kernel(dtype):
    ranks, _ = local([0, 1])
    both = [values(r, 77, dtype) for r in (0, 1)]

    def body(comm: CudaCommunicator) -> None:
        for op, of in (("sum", np.add), ("prod", np.multiply), ("min", np.minimum), ("max", np.maximum)):
            np.testing.assert_array_equal(comm.all_reduce(both[comm.rank], op=op), of(*both))

    each_rank(ranks, body)
    closed(ranks)


def test_in_a_window_nothing_is_copied_and_kernels_go_by_size():
    """Packets up to 64 KiB, and one shot up to 512 KiB for up to four ranks: 4,000, 80,000 and 600,000 bytes."""
    ranks, driver = local([0, 1], slot_bytes=128 << 10)

    def body(comm: CudaCommunicator) -> None:
        window = comm.shared(1_300_000)
        floats = window.array.view(np.float32)
        for size in (1000, 20_000, 150_000):
            source, target = floats[:size], floats[160_000 : 160_000 + size]
            source.fill(values(comm.rank, size))
            assert comm.all_reduce(source, target) is target
            np.testing.assert_array_equal(target.numpy(), values(0, size) + values(1, size))

    each_rank(ranks, body)
    used = {symbol for symbol, _, _ in driver.launches}
    assert used == {f"busbw_all_reduce_{kernel}_float32_sum" for kernel in ("ll", "one_shot", "two_shot")}
    closed(ranks)
    assert driver.held() == []


def test_each_form_of_packets_has_slots_of_its_own():
    """What an LL128 line leaves may read as LL's flags (test_device_sim.cpp shows it): the two take turns, and take different control windows."""
    ranks, driver = local([0, 1])
    both = [values(r, 300, "int32") for r in (0, 1)]

    def body(comm: CudaCommunicator) -> None:
        for call in range(6):
            taken = comm.all_reduce(both[comm.rank], kernel=("all_reduce_ll128", "all_reduce_ll")[call % 2])
            np.testing.assert_array_equal(taken, both[0] + both[1])
        assert len(set(comm._control_of(comm.rank))) == 3  # those of signals, and of each form

    each_rank(ranks, body)
    closed(ranks)
    assert driver.held() == []


def test_what_only_moves_goes_in_the_widest_words_that_fit():
    """5 floats are 20 bytes: words of 4. 7 bytes: words of 1. 8 floats: words of 8."""
    ranks, driver = local([0])
    for size, dtype, word in (
        (5, "float32", "uint32"),
        (7, "uint8", "uint8"),
        (8, "float32", "uint64"),
        (3, "float16", "uint16"),
    ):
        driver.launches.clear()
        ranks[0].all_gather(values(0, size, dtype))
        assert driver.launches[0][0] == f"busbw_all_gather_staged_{word}"
    closed(ranks)


def test_all_gather_into_a_window_is_direct():
    ranks, driver = local([0, 1])

    def body(comm: CudaCommunicator) -> np.ndarray:
        window = comm.shared(4096)
        target = window.array.view(np.float32)[:20]
        return comm.all_gather(comm.array(values(comm.rank, 10)), target).numpy()

    for result in each_rank(ranks, body):
        np.testing.assert_array_equal(result, np.concatenate([values(0, 10), values(1, 10)]))
    assert {symbol for symbol, _, _ in driver.launches} == {"busbw_all_gather_direct_uint64"}
    closed(ranks)


def test_blocks_of_all_ranks_of_a_gpu_have_a_multiprocessor_each():
    """8 multiprocessors: 8 blocks for one rank alone, 2 each for three ranks that share, and none of them cooperative."""
    alone, driver = local([0])
    assert alone[0].blocks == 8
    alone[0].all_reduce(values(0, 200_000))
    assert driver.launches == [("busbw_all_reduce_staged_float32_sum", 8, True)]
    shared, driver = local([0, 0, 0])
    assert [one.blocks for one in shared] == [2, 2, 2]
    each_rank(shared, lambda comm: comm.all_reduce(values(comm.rank, 200_000)))
    assert {(blocks, cooperative) for _, blocks, cooperative in driver.launches} == {(2, False)}
    closed(alone + shared)
    with pytest.raises(CudaError, match="9 ranks on one GPU have less than a multiprocessor each"):
        local([0] * 9)


def test_a_captured_call_only_enqueues_and_can_be_replayed():
    ranks, driver = local([0, 1])

    def body(comm: CudaCommunicator) -> None:
        data = comm.array(values(comm.rank, 100))
        comm.load([Entry("all_reduce_ll", "float32", "sum"), Entry("divide", "float32")])
        comm.driver.set_current(1 + comm.rank)
        stream = comm.driver.create_stream()
        comm.driver.begin_capture(stream)
        comm.all_reduce(data, data, op="avg", stream=stream)
        comm.barrier(stream=stream)
        graph = comm.driver.end_capture(stream)
        np.testing.assert_array_equal(data.numpy(), values(comm.rank, 100))  # nothing ran yet
        expected = (values(0, 100) + values(1, 100)) / 2
        for _ in range(3):  # equal on both ranks from the first time on, so their average stays
            comm.driver.launch_graph(graph, stream)
        comm.driver.synchronize(stream)
        comm.check()
        np.testing.assert_array_equal(data.numpy(), expected)
        comm.driver.destroy_graph(graph)
        comm.driver.destroy_stream(stream)

    comm = ranks[0]
    comm.load([Entry("barrier")])
    each_rank(ranks, body)
    closed(ranks)
    assert driver.held() == []


def test_a_lost_rank_is_named_and_the_communicator_is_of_no_more_use():
    ranks, driver = local([0, 1])
    for one in ranks:
        one._wait_s = 0.2
    quick = CudaCommunicator.local([0, 1], wait_s=0.2, slot_bytes=4096, toolkit=Toolkit(driver, *_rest(driver)))
    with pytest.raises(
        GaveUpError,
        match=r"rank 0 of local waited 0.2 s for .* of rank 1 \(block 0\): number 1 was due, 0 had come",
    ):
        quick[0].all_reduce(values(0, 10))
    with pytest.raises(GaveUpError, match="had given up before"):
        quick[0].barrier()
    closed(ranks + quick)
    assert driver.held() == []


def _rest(driver: FakeDriver) -> tuple[Any, Any]:
    tools = fake_toolkit()
    return tools.compiler, tools.cache


def test_abort_ends_the_waits_of_another_rank():
    ranks, _ = local([0, 1])

    def body(comm: CudaCommunicator) -> str:
        if comm.rank == 1:
            comm.abort(0)
            return ""
        with pytest.raises(GaveUpError) as raised:
            comm.barrier()
        return str(raised.value)

    assert "rank 0 of local" in each_rank(ranks, body)[0]
    closed(ranks)


def test_memory_goes_after_what_is_enqueued_on_it():
    ranks, driver = local([0])
    with ranks[0] as comm:
        window = comm.shared(4096)
        with pytest.raises(ValueError, match="no operation"):
            comm.all_reduce(values(0, 100), op="none")  # its copy to the GPU is under way
    after_copy = driver.calls[driver.calls.index("copy_in") :]
    assert after_copy.index("synchronize") < after_copy.index("unmap")
    ranks[0].close()  # a second time
    assert driver.held() == []
    del window


@pytest.mark.parametrize("call", ["create", "reserve", "map", "allow", "fill", "create_stream", "retain_context"])
@pytest.mark.parametrize("nth", [0, 1])
def test_when_a_call_fails_all_that_was_taken_is_given_back(call, nth):
    tools = fake_toolkit(devices=2, fails={call: nth})
    driver = tools.driver
    assert isinstance(driver, FakeDriver)
    with pytest.raises(CudaError, match="out of memory"):
        CudaCommunicator.local([0, 1], toolkit=tools)
    assert driver.held() == []


def test_gpus_that_cannot_reach_each_other_are_refused():
    tools = fake_toolkit(devices=2, apart=True)
    with pytest.raises(CudaError, match=r"GPU 0 can't reach GPU 1's memory.*nvidia-smi topo -p2p r"):
        CudaCommunicator.local([0, 1], toolkit=tools)
    assert tools.driver.held() == []  # type: ignore[attr-defined]


class Foreign:
    """An array of another library, as its interface shows it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = told


def test_arrays_of_other_libraries_are_taken_by_their_interface():
    ranks, _ = local([0])
    comm = ranks[0]
    data = comm.array(values(0, 12))
    told = {"shape": (3, 4), "typestr": "<f4", "data": (data.address, False), "version": 3, "strides": (16, 4)}
    np.testing.assert_array_equal(comm.all_reduce(Foreign(told)).numpy(), values(0, 12))
    with pytest.raises(ValueError, match="not contiguous"):
        comm.all_reduce(Foreign({**told, "strides": (4, 12)}))
    closed(ranks)


def test_wrong_use_says_what_is_wrong():
    ranks, _ = local([0])
    comm = ranks[0]
    ones = np.ones(6, np.float32)
    on_gpu = comm.array(ones)
    for call, error, said in (
        (lambda: comm.all_reduce(np.ones(12, np.float32)[::2]), ValueError, "not contiguous"),
        (lambda: comm.all_reduce(ones, np.ones(5, np.float32)), ValueError, "target holds 5 float32; 6 float32 are to go there"),
        (lambda: comm.all_reduce(ones, op="median"), ValueError, "no operation 'median'"),
        (lambda: comm.all_reduce(np.ones(3, np.complex128)), ValueError, "can't be moved"),
        (lambda: comm.all_to_all(on_gpu, on_gpu), ValueError, "overlap"),
        (lambda: comm.broadcast(ones, root=1), ValueError, r"root 1 is none of the ranks 0\.\.0"),
        (lambda: comm.all_reduce(ones, stream=5), ValueError, "can't be enqueued on a stream"),
        (lambda: comm.all_reduce([1.0]), TypeError, "list is no array"),
        (lambda: comm.all_reduce(on_gpu, kernel="all_reduce_two_shot"), ValueError, "see shared"),
        (lambda: comm.all_reduce(comm.empty(100_000, "f4"), kernel="all_reduce_ll"), ValueError, "do not fit 8 slots of 16384 as packets"),
        (lambda: comm.shared(0), ValueError, "a window of 0 bytes"),
        (lambda: CudaCommunicator(0, 65, "x"), ValueError, "up to 64"),
        (lambda: CudaCommunicator(0, 1, "x", slot_bytes=100), ValueError, "multiple of 64"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            call()
    closed(ranks)


_CONTEXT = multiprocessing.get_context("fork")


def _as_rank(body: Callable[..., Any], rank: int, ranks: int, *, name: str, answers: Any, of: dict[str, Any]) -> None:
    tools = fake_toolkit(devices=ranks, **of)
    try:
        before = len(list(Path("/proc/self/fd").iterdir()))
        with CudaCommunicator(rank, ranks, name, wait_s=1, slot_bytes=4096, toolkit=tools) as comm:
            found = body(comm)
        left = [*tools.driver.held(), *(["descriptors"] * (len(list(Path("/proc/self/fd").iterdir())) - before))]  # type: ignore[attr-defined]
        answers.put((rank, found, left))
    except Exception as error:
        answers.put((rank, f"{type(error).__name__}: {error}", tools.driver.held()))  # type: ignore[attr-defined]


def in_processes(ranks: int, body: Callable[[CudaCommunicator], Any], **of: Any) -> dict[int, tuple[Any, list[str]]]:
    """What body returned on each rank, or its error, and what the driver still held; none of a process that died."""
    answers = _CONTEXT.Queue()
    name = f"cuda-{os.getpid()}-{body.__name__}"
    started = [
        _CONTEXT.Process(target=_as_rank, args=(body, rank, ranks), kwargs={"name": name, "answers": answers, "of": of})
        for rank in range(ranks)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for one in started:
            one.start()
    found: dict[int, tuple[Any, list[str]]] = {}
    while any(one.is_alive() for one in started) or not answers.empty():
        try:
            rank, *answer = answers.get(timeout=0.1)
            found[rank] = tuple(answer)
        except queue.Empty:
            continue
    return found


def sums(comm: CudaCommunicator) -> list[float]:
    window = comm.shared(1 << 16)
    data = window.array.view(np.float32)[:1000]
    data.fill(values(comm.rank, 1000))
    comm.barrier()
    return [float(comm.all_reduce(data).numpy().sum()), float(comm.all_reduce(values(comm.rank, 5)).sum())]


@pytest.mark.parametrize("descriptors", [True, False], ids=["descriptors", "IPC"])
def test_processes_share_windows_and_leave_nothing(descriptors):
    expected = [float(sum(values(r, size).sum() for r in range(3))) for size in (1000, 5)]
    found = in_processes(3, sums, descriptors=descriptors)
    assert found == {rank: (expected, []) for rank in range(3)}


def dies(comm: CudaCommunicator) -> str:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(GaveUpError) as raised:
        comm.all_reduce(np.ones(8, np.float32))
    return str(raised.value)


def test_a_process_that_was_killed_is_named_and_all_is_given_back():
    found = in_processes(2, dies)
    assert set(found) == {0}
    said, left = found[0]
    assert re.search(r"waited 1 s for .* of rank 1 \(block 0\): number \d was due, \d had come", said)
    assert left == []


def different_sizes(comm: CudaCommunicator) -> None:
    comm.shared(100 + comm.rank)


def test_windows_of_different_sizes_are_refused_on_all_ranks():
    found = in_processes(2, different_sizes)
    assert "rank 1 has a window of 101 bytes, this rank of 100" in found[0][0]
    assert "rank 0 has a window of 100 bytes, this rank of 101" in found[1][0]
    assert found[0][1] == found[1][1] == []


def no_room_on_rank_1(comm: CudaCommunicator) -> None:
    if comm.rank == 1:
        comm.driver.fails["create"] = 0  # type: ignore[attr-defined]
    comm.shared(100)


def test_a_rank_without_room_tells_the_others_at_once():
    found = in_processes(2, no_room_on_rank_1)
    assert found[0] == ("SharedMemoryError: rank 1 of " + found[0][0].split("rank 1 of ")[1], [])
    assert "has no window: create: CUDA_ERROR_OUT_OF_MEMORY" in found[0][0]
    assert "out of memory" in found[1][0]


def test_a_rank_that_never_comes_is_named():
    with pytest.raises(SharedMemoryError, match=r"rank 1 of alone-0 did not come"):
        CudaCommunicator(0, 2, "alone", wait_s=0.1, toolkit=fake_toolkit())


def test_a_communicator_with_the_backend_cuda_is_one_of_gpus(monkeypatch):
    tools = fake_toolkit()
    monkeypatch.setattr("busbw.execution.cuda.find_toolkit", lambda: tools)
    monkeypatch.setenv("BUSBW_RANK", "0")
    with Communicator(1, "cuda", name="one", wait_s=1) as comm:
        assert isinstance(comm, CudaCommunicator)
        np.testing.assert_array_equal(comm.all_reduce(values(0, 9)), values(0, 9))


def test_every_kernel_of_the_table_is_one_of_the_headers():
    """Each names a function that its header defines."""
    from busbw.execution.cuda_compiler import device_headers

    for kernel in KERNELS:
        text = (device_headers() / "busbw" / "device" / kernel.header).read_text()
        assert re.search(rf"\b{kernel.function or kernel.name}\(const Comm& comm, const Block& block", text), (
            kernel.name
        )
