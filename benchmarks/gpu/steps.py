"""What is measured on a GPU, step by step. Each runs in a process of its own, and says what it found row by row."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.kernels import SOURCE, packed
from benchmarks.rows import NotMeasurableError
from busbw.execution import GaveUpError
from busbw.execution.cuda import CudaCommunicator, Toolkit, each_rank
from busbw.execution.cuda_driver import Device
from busbw.execution.cuda_kernels import MOST_THREADS, Entry, source_of

__all__ = ["STEPS", "Machine", "Row", "Step", "calibration_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was found."""

    step: str
    what: str
    value: float | int | str | None
    unit: str = ""
    ok: bool | None = None
    """Whether a result was right; None of a figure."""
    meets: bool | None = None
    """Whether a figure meets the goal of kernel-design.md, section 4; None where there is none."""
    peers: dict[str, float] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"schema": 1, **dataclasses.asdict(self)}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the steps work with."""

    toolkit: Toolkit
    small: bool = False
    """Few and small sizes: whether it runs."""
    toolkit_name: str = ""
    """Of what stands in for the machine's; processes of a step make their own."""

    def devices(self, ranks: int) -> list[int]:
        """A GPU for each rank; several ranks share where there are fewer."""
        return [rank % self.toolkit.driver.device_count() for rank in range(ranks)]

    def ranks(self, ranks: int, *, wait_s: float = 10.0) -> list[CudaCommunicator]:
        """A communicator in this process."""
        return CudaCommunicator.local(self.devices(ranks), wait_s=wait_s, toolkit=self.toolkit)


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the run. limit_s: after which its process is ended; all together stay below ten minutes."""

    name: str
    what: str
    limit_s: float
    body: Callable[[Machine], Iterator[Row]]


def _device(machine: Machine) -> Iterator[Row]:
    driver = machine.toolkit.driver
    for ordinal in range(driver.device_count()):
        found = driver.device(ordinal)
        about = {
            **dataclasses.asdict(found),
            "driver": list(driver.version()),
            "compiler": machine.toolkit.compiler.name,
        }
        yield Row("device", f"GPU {ordinal}", found.name, about=about)
    for one in range(driver.device_count()):
        for other in range(one):
            access = driver.peer_access(one, other)
            yield Row(
                "device",
                f"GPU {one} and GPU {other}",
                "peers" if access.access else "apart",
                about=dataclasses.asdict(access),
            )


TYPES = {"float32": ("sum", "max", "avg"), "float16": ("sum",), "float64": ("prod",), "int8": ("sum", "min"), "int32": ("sum",), "uint64": ("max",)}  # fmt: skip


def _values(rank: int, size: int, dtype: str) -> np.ndarray:
    """Small whole numbers: sums are exact in every type, whatever the order."""
    return ((np.arange(size) * (rank + 1) + rank) % 3).astype(dtype)


def _oracle(machine: Machine) -> Iterator[Row]:
    """Every collective, type and operation against numpy, on arrays of the GPU and in windows, aligned and not."""
    sizes = (0, 1, 5, 4099) if machine.small else (0, 1, 3, 17, 4096, 65_537, 1_000_003, 4_194_304)
    for count in (1, 2) if machine.small else (1, 2, 3, 4):
        ranks = machine.ranks(count)
        try:
            wrong = sorted(set().union(*each_rank(ranks, lambda comm: set(_wrong(comm, sizes)))))
        finally:
            _close(ranks)
        about = {"wrong": wrong[:20], "sizes": sizes, "types": TYPES, "devices": machine.devices(count)}
        yield Row("oracle", f"results of {count} ranks that differ from numpy's", len(wrong), ok=not wrong, about=about)


def _wrong(comm: CudaCommunicator, sizes: Sequence[int]) -> Iterator[str]:
    """What is not as numpy has it."""
    n, rank = comm.ranks, comm.rank
    window = comm.shared(max(sizes) * 8 * 2 + 256)
    of = {"sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}

    def differs(found: Any, expected: np.ndarray, what: str) -> Iterator[str]:
        values = found if isinstance(found, np.ndarray) else found.numpy(comm.stream)
        if not np.array_equal(values, expected):
            yield f"{what}, rank {rank}"

    for dtype, operations in TYPES.items():
        for size in sizes:
            whole = [_values(r, size, dtype) for r in range(n)]
            mine = comm.array(whole[rank])
            for op in operations:
                total = whole[0].copy()
                for other in whole[1:]:
                    total = of[op](total, other)
                if op == "avg":
                    total = (total / total.dtype.type(n)).astype(dtype)
                what = f"{dtype} {op} of {size}"
                yield from differs(comm.all_reduce(mine, op=op), total, f"all_reduce {what}")
                for off in (0, 1):  # at a vector's alignment, and off it
                    place = window.array.view(dtype)[off : off + size]
                    place.fill(whole[rank], comm.stream)
                    comm.barrier()
                    yield from differs(
                        comm.all_reduce(place, place, op=op), total, f"all_reduce in a window, at {off}, {what}"
                    )
            if dtype != "float32":
                continue
            parts = [_values(r, size * n, dtype) for r in range(n)]
            part = slice(rank * size, (rank + 1) * size)
            given = comm.array(parts[rank])
            yield from differs(
                comm.reduce_scatter(given), np.sum(parts, axis=0, dtype=dtype)[part], f"reduce_scatter of {size}"
            )
            yield from differs(comm.all_gather(mine), np.concatenate(whole), f"all_gather of {size}")
            yield from differs(
                comm.all_to_all(given), np.concatenate([one[part] for one in parts]), f"all_to_all of {size}"
            )
            if size * n * 4 <= window.size_bytes:
                target = window.array.view(dtype)[: size * n]
                yield from differs(
                    comm.all_gather(mine, target), np.concatenate(whole), f"all_gather into a window of {size}"
                )
            received = comm.array(whole[rank] if rank == n - 1 else np.zeros(size, dtype))
            yield from differs(comm.broadcast(received, root=n - 1), whole[n - 1], f"broadcast of {size}")


def _graph(machine: Machine) -> Iterator[Row]:
    """A captured collective gives the same at every replay."""
    ranks = machine.ranks(2)
    size = 100_000
    try:
        for one in ranks:
            one.load([Entry("all_reduce_one_shot", "float32", "sum"), Entry("barrier")])

        def body(comm: CudaCommunicator) -> int:
            given, made = comm.array(_values(comm.rank, size, "float32")), comm.empty(size, np.float32)
            with _graph_of(
                comm, lambda stream: comm.all_reduce(given, made, stream=stream, kernel="all_reduce_one_shot")
            ) as replay:
                wrong = 0
                for turn in range(20):
                    given.fill(_values(comm.rank, size, "float32") + turn, comm.stream)
                    replay()
                    expected = _values(0, size, "float32") + _values(1, size, "float32") + 2 * turn
                    wrong += not np.array_equal(made.numpy(comm.stream), expected)
                comm.check()
            return wrong

        wrong = sum(each_rank(ranks, body))
    finally:
        _close(ranks)
    yield Row("graph", "replays of a captured all_reduce that differ from numpy's", wrong, ok=wrong == 0)


class _graph_of:  # noqa: N801  (used as a function)
    """What body enqueues, captured on a stream of its own; the context is a function that runs it and waits."""

    def __init__(self, comm: CudaCommunicator, body: Callable[[int], Any], times: int = 1) -> None:
        self._comm, self._body, self._times = comm, body, times
        self._undo = ExitStack()
        self.stream = 0

    def __enter__(self) -> Callable[[], float]:
        driver = self._comm.driver
        driver.set_current(self._comm._functions.context)
        with ExitStack() as undo:
            self.stream = driver.create_stream()
            undo.callback(driver.destroy_stream, self.stream)
            begin, end = driver.create_event(True), driver.create_event(True)
            undo.callback(driver.destroy_event, begin)
            undo.callback(driver.destroy_event, end)
            driver.begin_capture(self.stream)
            for _ in range(self._times):
                self._body(self.stream)
            graph = driver.end_capture(self.stream)
            undo.callback(driver.destroy_graph, graph)
            self._undo = undo.pop_all()

        def replay() -> float:
            driver.record(begin, self.stream)
            driver.launch_graph(graph, self.stream)
            driver.record(end, self.stream)
            return driver.elapsed_s(begin, end)

        return replay

    def __exit__(self, *_: object) -> None:
        self._comm.driver.synchronize(self.stream)
        self._undo.close()


_SPAWN = multiprocessing.get_context("spawn")  # CUDA does not survive a fork


def _in_processes(machine: Machine, body: str, by_ipc: bool, wait_s: float) -> list[str | None]:
    """What each of two processes answered; None of one that died."""
    name = f"gpu-{os.getpid()}-{body}-{int(by_ipc)}"
    answers = _SPAWN.Queue()
    started = [
        _SPAWN.Process(target=_process, args=(body, rank, name), kwargs={"machine": machine.toolkit_name, "by_ipc": by_ipc, "wait_s": wait_s, "answers": answers})
        for rank in range(2)
    ]  # fmt: skip
    for one in started:
        one.start()
    found: dict[int, str] = {}
    until = time.monotonic() + wait_s + 30
    while any(one.is_alive() for one in started) and time.monotonic() < until:
        time.sleep(0.02)
        while not answers.empty():
            rank, said = answers.get()
            found[rank] = said
    for one in started:
        one.kill()
        one.join()
    while not answers.empty():
        rank, said = answers.get()
        found[rank] = said
    return [found.get(rank) for rank in range(2)]


class _WithoutDescriptors:
    """A driver whose GPUs can't hand out descriptors, so that IPC handles are used."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def device(self, ordinal: int) -> Device:
        """A GPU."""
        return dataclasses.replace(self._driver.device(ordinal), shares_by_descriptor=False)


def _process(body: str, rank: int, name: str, *, machine: str, by_ipc: bool, wait_s: float, answers: Any) -> None:
    from benchmarks.gpu.__main__ import toolkit_named

    try:
        tools = toolkit_named(machine)
        if by_ipc:
            tools = dataclasses.replace(tools, driver=_WithoutDescriptors(tools.driver))
        with CudaCommunicator(rank, 2, name, wait_s=wait_s, toolkit=tools) as comm:
            answers.put((rank, _sums(comm) if body == "sums" else _loses_a_rank(comm)))
    except Exception as error:  # the step reports it
        answers.put((rank, f"{type(error).__name__}: {error}"))


def _sums(comm: CudaCommunicator) -> str:
    window = comm.shared(1 << 20)
    data = window.array.view(np.float32)[:10_000]
    data.fill(_values(comm.rank, 10_000, "float32"), comm.stream)
    comm.barrier()
    expected = _values(0, 10_000, "float32") + _values(1, 10_000, "float32")
    return "right" if np.array_equal(comm.all_reduce(data).numpy(comm.stream), expected) else "wrong"


def _loses_a_rank(comm: CudaCommunicator) -> str:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        comm.all_reduce(np.ones(8, np.float32))
    except GaveUpError as error:
        return f"after {time.monotonic() - begun:.1f} s: {error}"
    return "nothing noticed"


def _processes(machine: Machine) -> Iterator[Row]:
    """Two processes that share windows, by descriptors and by IPC handles; on one GPU they take turns, so this shows no speed."""
    for by_ipc in (False, True):
        said = _in_processes(machine, "sums", by_ipc, 20.0)
        how = "IPC handles" if by_ipc else "descriptors"
        yield Row(
            "processes",
            f"all_reduce of two processes that share memory by {how}",
            "; ".join(map(str, said)),
            ok=said == ["right"] * 2,
        )


def _lost_rank(machine: Machine) -> Iterator[Row]:
    """A process is killed between two collectives: the other must name it at its deadline, and the GPU must serve the next communicator."""
    said = _in_processes(machine, "loses a rank", False, 2.0)
    named = said[1] is None and said[0] is not None and "of rank 1 (block" in said[0]
    yield Row("lost rank", "what the rank says whose peer was killed", said[0], ok=named)
    ranks = machine.ranks(2)
    try:
        right = all(each_rank(ranks, lambda comm: _sums(comm) == "right"))
    finally:
        _close(ranks)
    yield Row("lost rank", "the next communicator's result", "right" if right else "wrong", ok=right)


def _sanitizer(machine: Machine) -> Iterator[Row]:
    """The oracle on small sizes under compute-sanitizer's memcheck."""
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None:
        raise NotMeasurableError("no compute-sanitizer: it is part of the CUDA toolkit")
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", "--target-processes", "all"]
    command += [
        sys.executable,
        "-m",
        "benchmarks.gpu",
        "--step",
        "oracle",
        "--small",
        "--toolkit",
        machine.toolkit_name,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=55)
    told = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if line.startswith("=====")]
    yield Row(
        "sanitizer", "memcheck's exit status", done.returncode, ok=done.returncode == 0, about={"said": told[-12:]}
    )


def _latency(machine: Machine) -> Iterator[Row]:
    """LL round trip and barrier, timed on the device by many in one kernel; the median of nine kernels."""
    for count in (2,) if machine.small else (2, 4):
        ranks = machine.ranks(count)
        try:
            for blocks in sorted({1, min(8, ranks[0].blocks)}):
                took_s = _repeated(ranks, "busbw_measure_barrier", 1000, blocks)
                yield Row(
                    "latency",
                    f"barrier of {count} ranks, {blocks} blocks",
                    took_s,
                    "s",
                    about={"devices": machine.devices(count)},
                )
            if count == 2:
                took_s = _repeated(ranks, "busbw_measure_round_trip", 1000, 1)
                yield Row("latency", "LL round trip", took_s, "s", about={"devices": machine.devices(count)})
        finally:
            _close(ranks)


def _repeated(ranks: Sequence[CudaCommunicator], symbol: str, times: int, blocks: int) -> float:
    """Seconds that one repetition takes, as rank 0 counts them."""
    for one in ranks:
        one.kernel(SOURCE, symbol)
    turns = range(9)

    def body(comm: CudaCommunicator) -> list[int]:
        kernel, out = comm.kernel(SOURCE, symbol), comm.array(np.zeros(1, np.uint64))
        found = []
        for turn in turns:
            values = packed(out.address, ("I", times))
            if symbol.endswith("round_trip"):
                values += packed(("I", 1 + turn * times))
            comm.launch(kernel, values, blocks=blocks, threads=64, stream=comm.stream)
            comm.driver.synchronize(comm.stream)
            comm.check()
            found.append(int(out.numpy(comm.stream)[0]))
        return found

    return statistics.median(each_rank(ranks, body)[0]) / times * 1e-9


def _put(machine: Machine) -> Iterator[Row]:
    """Bytes a second that blocks store at a peer, beside the driver's copy of the same memory."""
    ranks = machine.ranks(2)
    sizes = (1 << 16,) if machine.small else (1 << 20, 1 << 24, 1 << 28)
    try:
        windows = [one.shared(max(sizes)) for one in ranks]
        comm, driver = ranks[0], machine.toolkit.driver
        kernel, given = comm.kernel(SOURCE, "busbw_measure_put"), comm.array(np.zeros(max(sizes), np.uint8))
        target = windows[0]._mapped.addresses[1]
        for size in sizes:
            times = max(2, min(50, (1 << 31) // size))
            copy_s = _timed(comm, lambda stream, size=size: driver.copy(target, given.address, size, stream), times)
            for blocks in sorted({1, 8, 32, comm.device.multiprocessors, 2 * comm.device.multiprocessors}):
                values = packed(windows[0].struct, ("I", 1), given.address, 0, size // 8)

                def put(stream: int, values: list[bytes] = values, blocks: int = blocks) -> None:
                    comm.launch(kernel, values, blocks=blocks, threads=MOST_THREADS, stream=stream, waits=False)

                took_s = _timed(comm, put, times)
                most = blocks >= comm.device.multiprocessors and size == max(sizes)
                meets = copy_s >= 0.9 * took_s if most else None
                yield Row(
                    "put",
                    f"put of {size} bytes by {blocks} blocks",
                    size / took_s,
                    "B/s",
                    None,
                    meets,
                    {"cudaMemcpy": size / copy_s},
                    {"devices": machine.devices(2)},
                )
    finally:
        _close(ranks)


def _timed(comm: CudaCommunicator, body: Callable[[int], Any], times: int) -> float:
    """Seconds of one call of what body enqueues: the least of three batches."""
    driver = comm.driver
    body(comm.stream)
    with ExitStack() as undo:
        begin, end = driver.create_event(True), driver.create_event(True)
        undo.callback(driver.destroy_event, begin)
        undo.callback(driver.destroy_event, end)
        found = []
        for _ in range(3):
            driver.record(begin, comm.stream)
            for _ in range(times):
                body(comm.stream)
            driver.record(end, comm.stream)
            found.append(driver.elapsed_s(begin, end) / times)
    return min(found)


def _nccl(machine: Machine) -> Iterator[Row]:
    """all_reduce of float32, ours and NCCL's, ranks of this process on the same GPUs, each from a graph of twenty calls."""
    from benchmarks.gpu.nccl import ENVIRONMENT, Nccl

    if machine.toolkit_name:
        raise NotMeasurableError("NCCL needs the driver itself")
    os.environ.update(ENVIRONMENT)
    library = Nccl()
    sizes = [8 << shift for shift in range(0, 26, 3)] if not machine.small else [1 << 10]
    for count in (2,) if machine.small else (2, 4):
        if count > 2:
            os.environ["NCCL_MAX_CTAS"] = "8"  # more ranks on a GPU than two need room for the blocks of all
        ranks = machine.ranks(count)
        shared = library.unique_id()
        meeting = threading.Barrier(count, timeout=60)
        try:
            body = partial(_beside_nccl, library=library, shared=shared, sizes=sizes, meeting=meeting)
            rows = each_rank(ranks, body)
        finally:
            _close(ranks)
        for per_size in zip(*rows, strict=True):
            size = per_size[0][0]
            ours, theirs = max(one[1] for one in per_size), max(one[2] for one in per_size)
            goal = ours <= 0.8 * theirs if size <= 64 << 10 else ours <= theirs if size >= 64 << 20 else None
            about = {"devices": machine.devices(count), "nccl": library.version, "kernel": per_size[0][3]}
            yield Row(
                "nccl", f"all_reduce of {size} bytes, {count} ranks", ours, "s", None, goal, {"NCCL": theirs}, about
            )


def _beside_nccl(
    comm: CudaCommunicator, *, library: Any, shared: Any, sizes: Sequence[int], meeting: threading.Barrier
) -> list[tuple[int, float, float, str]]:
    """Size, our seconds, NCCL's, our kernel, of each size, on one rank."""
    times = 20
    comm.driver.set_current(comm._functions.context)
    window = comm.shared(2 * max(sizes))
    peer = library.rank(shared, comm.rank, comm.ranks)
    found = []
    try:
        for size in sizes:
            whole = window.array.view(np.float32)
            given, made = whole[: size // 4], whole[max(sizes) // 4 :][: size // 4]
            comm.all_reduce(given, made)  # compiled and loaded, and right before it is captured
            kernel = comm._all_reduce_kernel(size, True)

            def ours(stream: int, given: Any = given, made: Any = made) -> None:
                comm.all_reduce(given, made, stream=stream)

            def theirs(stream: int, given: Any = given, made: Any = made, size: int = size) -> None:
                library.all_reduce(peer, given.address, made.address, size // 4, stream)

            theirs(comm.stream)
            comm.driver.synchronize(comm.stream)
            took = []
            for body in (ours, theirs):
                with _graph_of(comm, body, times) as replay:
                    best = float("inf")
                    for _ in range(6):
                        meeting.wait()
                        best = min(best, replay() / times)
                    took.append(best)
                    meeting.wait()
            comm.check()
            found.append((size, took[0], took[1], kernel))
    finally:
        library.destroy(peer)
    return found


def _close(ranks: Sequence[CudaCommunicator]) -> None:
    for one in ranks:
        one.close()


def calibration_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """A calibration with what was measured in place of what ships, in the shape that `busbw predict --calibration` reads; None if nothing was.

    LL: half a round trip is a step. Simple: a barrier is a step of it without data. On one GPU these are no links, but the least that a link can
    come to; the source says so.
    """
    from busbw.prediction.calibration import load_calibration, to_json

    latency = {row["what"]: row for row in rows if row["step"] == "latency"}
    trip = latency.get("LL round trip")
    device = next((row["about"] for row in rows if row["step"] == "device" and "architecture" in row["about"]), None)
    if trip is None or device is None or not trip["value"] > 0:
        return None
    document = to_json(load_calibration())
    gpu = _CLASSES.get(device["architecture"] // 10)
    one_gpu = len(set(trip["about"]["devices"])) == 1
    where = "ranks on one GPU: what a link takes comes on top" if one_gpu else "ranks on two GPUs"
    source = f"measured by benchmarks.gpu on {device['name']}, {where}"
    step_s = trip["value"] / 2
    step = document["parameters"]["step_s"]
    if gpu is None:
        step["value"] = step_s
    else:
        step["classes"][gpu] = step_s
        step["class_uncertainty"][gpu] = 0.5 if one_gpu else 0.1
    step["source"] = f"{source}: half of an LL round trip"
    barrier = latency.get("barrier of 2 ranks, 1 blocks")
    if barrier is not None:
        simple = document["parameters"]["step_simple_factor"]
        simple["value"] = max(1.0, barrier["value"] / step_s)
        simple["source"] = f"{source}: a barrier over half of an LL round trip"
    return document


_CLASSES = {8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell-pcie"}
"""Classes of prediction.calibration by major compute capability; 8.9 and 12 have no NVLink, and the classes none for 8.9."""


def _compiled(machine: Machine) -> Iterator[Row]:
    """What the others need, so that none of their time goes into compiling."""
    entries = [
        Entry("barrier"),
        *(
            Entry(name, "float32", "sum")
            for name in ("all_reduce_one_shot", "all_reduce_two_shot", "all_reduce_staged")
        ),
    ]
    begun = time.monotonic()
    tools = machine.toolkit
    architecture = tools.driver.device(0).architecture
    for one in entries:
        tools.cache.cubin(tools.compiler, source_of([one]), architecture)
    tools.cache.cubin(tools.compiler, SOURCE, architecture)
    yield Row(
        "compile",
        "kernels compiled or found in the cache",
        len(entries) + 1,
        about={"took_s": time.monotonic() - begun, "cache": str(Path(tools.cache.folder))},
    )


STEPS = (
    Step("device", "which GPUs, driver and compiler", 30, _device),
    Step("compile", "the kernels compile for this GPU", 60, _compiled),
    Step("latency", "LL round trip and barrier", 40, _latency),
    Step("oracle", "results against numpy", 150, _oracle),
    Step("graph", "replays of a captured collective", 30, _graph),
    Step("nccl", "head to head with NCCL", 90, _nccl),
    Step("put", "put bandwidth beside cudaMemcpy", 40, _put),
    Step("processes", "windows between processes", 50, _processes),
    Step("lost rank", "a killed rank is named", 40, _lost_rank),
    Step("sanitizer", "compute-sanitizer on small sizes", 60, _sanitizer),
)
"""In the order of what is missed most if the time runs out."""
