"""A communicator of processes or threads on one machine: each makes its own, with its rank, and they find each other by a name."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from busbw.execution._cpu import Rank, copy, looks_before_yield
from busbw.execution.shared_memory import HEAD_BYTES, map_all
from busbw.execution.tracing import Spans, TracedCalls

__all__ = ["PRIMITIVES", "Backend", "Communicator", "GaveUpError", "SharedArray", "run_threads"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Backend = Literal["cpu", "sim", "cuda", "mpi"]

PRIMITIVES = (
    "nothing", "a signal", "a barrier", "a packet", "a message", "a free slot", "a flag", "a flush", "its memory",
)  # fmt: skip
"""Of wait.hpp, Primitive."""
_MEMORY = PRIMITIVES.index("its memory")
CELL_BYTES = 1 << 14
"""The most that one message of a pipe carries: a third of a first-level cache of 48 KiB, half of one of 32 KiB."""
_LOOKS_WHERE_CORES_ARE_FEW = 70
"""A few more than are made without a pause (target_cpu.hpp): with more ranks than cores a wait lasts until another rank has had the core."""
_LOOKS_WHERE_CORES_ARE_MANY = 16_000
"""About 1 ms of pauses: a rank that gives its core away gets it back after the slice of whoever took it, a few ms later."""
_GRACE_S = 2.0
"""For a thread to end after Ctrl-C, once its waits have. A guess."""
_LONGEST_WAIT_S = 1e9
"""Thirty years; nanoseconds of it fit 64 bits."""
_MOST_CORES = 4096
"""That are told apart: more than Linux is built for by distributions (NR_CPUS 8192 at most; a guess that half will do)."""


_PAIR_OF_LINES = 128
"""pipes.hpp, kPair."""
_OF_ML_DTYPES = {
    "bfloat16": ("uint16", "bfloat16"),
    "float8_e4m3fn": ("uint8", "float8_e4m3"),
    "float8_e5m2": ("uint8", "float8_e5m2"),
}
Result = TypeVar("Result")
_NOTHING: Array = np.empty(0, np.uint8)


class GaveUpError(TimeoutError):
    """A wait ended at its deadline, or because another wait of this rank had; the message says who waited for whom."""


class SharedArray:
    """Memory of the same size on every rank that all of them map; `array` is this rank's. all_reduce on it copies nothing besides."""

    def __init__(self, memory: list[Bytes], rank: int) -> None:
        self.memory = memory
        self.array = memory[rank]


class Communicator:
    """One rank of a communicator of `ranks` processes on this machine that have agreed on `name`.

    Rank and name come from the launcher's environment (BUSBW_RANK, BUSBW_JOB) if they are not given; with backend="mpi" from
    mpi4py, which must run as many ranks on this machine. With backend="cuda" it is a `busbw.execution.cuda.CudaCommunicator`, of as many GPUs.
    `run_threads` makes ranks of threads of this process.
    Arrays are numpy arrays and whatever else has Python's buffer protocol, or gives an array without a copy by DLPack (torch and cupy
    tensors on the CPU); they must be contiguous. bfloat16 and 8-bit floats have no numpy type: pass uint16 and dtype="bfloat16", uint8 and
    dtype="float8_e4m3" or "float8_e5m2"; all_reduce takes ml_dtypes' arrays as they are. Reductions go by rank
    0, 1, .. n-1 on every rank, so all ranks get the same bits.
    Sizes and types must be the same on all ranks, as in MPI. A rank that asks for something else is noticed where memory of peers is read
    (GaveUpError at once) and where a message is missing (at the deadline); small calls of different types give wrong values.
    wait_s: how long a rank waits for another before it raises GaveUpError; after that the communicator is of no more use.
    attach: larger messages are read from the peer's own memory where the system lets a process do that; False: never.
    """

    _common: _Common | None

    def __new__(cls, ranks: int = 0, backend: Backend = "cpu", **of: Any) -> Any:
        """One on GPUs for backend="cuda"."""
        return super().__new__(cls) if backend != "cuda" else _on_gpus(ranks, **of)

    def __init__(
        self,
        ranks: int,
        backend: Backend = "cpu",
        *,
        rank: int | None = None,
        name: str | None = None,
        wait_s: float = 30.0,
        attach: bool = True,
    ) -> None:
        if backend == "mpi":
            rank, name = _from_mpi(ranks)
        elif backend != "cpu":
            _refuse(backend)
        self.ranks, self._wait_s = ranks, wait_s
        self.rank = _from_environment("BUSBW_RANK", rank, "rank", int)
        self.name = _from_environment("BUSBW_JOB", name, "name", str)
        self._windows, self._common = itertools.count(), None
        control = self._mapped(self.name, Rank.control_bytes(ranks, CELL_BYTES))
        self._start(control, attach)

    @classmethod
    def _of_thread(cls, rank: int, common: _Common, wait_s: float) -> Communicator:
        made: Communicator = object.__new__(cls)
        made.ranks, made.rank, made.name, made._wait_s = common.ranks, rank, f"threads of {os.getpid()}", wait_s
        made._windows, made._common = itertools.count(), common
        made._start(common.memory(-1, Rank.control_bytes(common.ranks, CELL_BYTES)), attach=True)
        return made

    def _start(self, control: list[Bytes], attach: bool) -> None:
        if not self._wait_s > 0:
            raise ValueError(f"wait_s={self._wait_s}: a wait lasts some seconds")
        self._core: Any = Rank(self.rank, control, CELL_BYTES, min(self._wait_s, _LONGEST_WAIT_S))
        if attach and self.ranks > 1:
            self._check(self._core.attach())
        mine = np.zeros(_MOST_CORES, np.uint8)
        mine[[core for core in os.sched_getaffinity(0) if core < _MOST_CORES]] = 1
        cores = np.count_nonzero(self.all_reduce(mine, op="max"))  # a rank may be bound to one of them
        self._core.set_cores(int(cores))
        looks_before_yield(_LOOKS_WHERE_CORES_ARE_FEW if self.ranks > cores else _LOOKS_WHERE_CORES_ARE_MANY)

    def _mapped(self, name: str, size_bytes: int) -> list[Bytes]:
        """Memory of all ranks, zeros, of size_bytes each."""
        if self._common is not None:
            return self._common.memory(int(name.rpartition("-w")[2]), size_bytes)
        mapped = map_all(name, self.rank, self.ranks, size_bytes, self._wait_s)
        return [np.frombuffer(one, np.uint8)[HEAD_BYTES : HEAD_BYTES + size_bytes] for one in mapped]

    def shared(self, size_bytes: int) -> SharedArray:
        """Memory of size_bytes that all ranks map, zeros. All ranks call, with the same size, in the same order.

        An all_reduce on it takes the same place of it on every rank: one that does not raises GaveUpError, at once or at the deadline.
        """
        if size_bytes < 1:
            raise ValueError(f"{size_bytes} bytes can't be shared: at least one is needed")
        memory = self._mapped(f"{self.name}-w{next(self._windows)}", size_bytes)
        self._core.add_window(memory, size_bytes)
        return SharedArray(memory, self.rank)

    def trace(self, spans: Spans | None = None) -> Spans:
        """Where from now on each collective of this rank writes (rank, 0, its name, begin, end); `Spans.observations()` makes rows of the table `spans`.

        Untraced calls pay nothing for it, traced ones two looks at the clock. `untrace()` ends it.
        """
        made = Spans() if spans is None else spans
        self.untrace()
        self._core = TracedCalls(self._core, self.rank, made)
        return made

    def untrace(self) -> None:
        """Ends what trace() began."""
        if isinstance(self._core, TracedCalls):
            self._core = self._core.untraced

    @property
    def reads_peers_memory(self) -> bool:
        """Whether larger messages are read from the peer's own memory; else they pass through shared memory in strips."""
        return bool(self._core.is_attached)

    @property
    def wait_s(self) -> float:
        """How long a rank waits for another."""
        return self._wait_s

    def barrier(self) -> None:
        """Nobody leaves before everybody has come."""
        self._check(self._core.barrier())

    def copies(self, source: Array, target: Array, times: int = 1) -> None:
        """Copies source to target so often, on this rank alone: the yardstick of large collectives."""
        copy(source, target, times)

    def round_trips(self, times: int = 1) -> None:
        """A bare cache line goes from rank 0 to rank 1 and back, so often: the yardstick of small collectives. All ranks call."""
        self._check(self._core.round_trip(times))

    def all_reduce(self, source: Any, target: Any = None, op: str = "sum", *, dtype: str = "", times: int = 1) -> Array:
        """The reduction of all ranks' source, in target (new if None; may be source). op: sum, prod, min, max, avg. times: calls in a row."""
        given = source if type(source) is np.ndarray else _array(source)
        made = np.empty_like(given) if target is None else target if type(target) is np.ndarray else _array(target)
        try:
            if stopped := self._core.all_reduce(given, made, op, dtype, times):
                self._check(stopped)
        except ValueError:
            if (bits := _bits_of(given)) is None or made.dtype != given.dtype:
                raise
            self.all_reduce(given.view(bits[0]), made.view(bits[0]), op, dtype=bits[1], times=times)
        return made

    def reduce_scatter(
        self, source: Any, target: Any = None, op: str = "sum", *, dtype: str = "", times: int = 1
    ) -> Array:
        """This rank's part of the reduction of all ranks' source: part r of `ranks` equal ones on rank r."""
        given = _array(source)
        made = np.empty(given.size // self.ranks, given.dtype) if target is None else _array(target)
        self._check(self._core.reduce_scatter(given, made, op, dtype, times))
        return made

    def all_gather(self, source: Any, target: Any = None, *, times: int = 1) -> Array:
        """All ranks' source, one after the other, in the order of ranks."""
        given = _array(source)
        made = np.empty(given.size * self.ranks, given.dtype) if target is None else _array(target)
        self._check(self._core.all_gather(given, made, times))
        return made

    def all_to_all(self, source: Any, target: Any = None, *, times: int = 1) -> Array:
        """Part s of the result is the part of rank s's source that is for this rank. source and target must not overlap."""
        given = _array(source)
        made = np.empty_like(given) if target is None else _array(target)
        self._check(self._core.all_to_all(given, made, times))
        return made

    def broadcast(self, source: Any, target: Any = None, root: int = 0, *, times: int = 1) -> Array:
        """The root's source, on all ranks. On the others source gives the size only, and is the target if there is none."""
        given = _array(source)
        made = given if target is None else _array(target)
        self._is_root(root)
        self._check(self._core.broadcast(given, made, root, times))
        return made

    def reduce(
        self, source: Any, target: Any = None, op: str = "sum", root: int = 0, *, dtype: str = ""
    ) -> Array | None:
        """The reduction of all ranks' source on the root, in target (new if None); None on the others."""
        given = _array(source)
        is_root = self._is_root(root)
        made = given if not is_root else np.empty_like(given) if target is None else _array(target)
        self._check(self._core.reduce(given, made, op, dtype, root))
        return made if is_root else None

    def gather(self, source: Any, target: Any = None, root: int = 0) -> Array | None:
        """All ranks' source on the root, one after the other; None on the others."""
        given = _array(source)
        is_root = self._is_root(root)
        made = (
            _array(target) if target is not None else np.empty(given.size * self.ranks if is_root else 0, given.dtype)
        )
        got = [given.nbytes] * self.ranks if is_root else [0] * self.ranks
        self._check(self._core.exchange(given, self._to(root, given.nbytes), made if is_root else _NOTHING, got))
        return made if is_root else None

    def scatter(self, source: Any, target: Any, root: int = 0) -> Array:
        """This rank's part of the root's source, in target. source is read on the root alone."""
        made = _array(target)
        is_root = self._is_root(root)
        given = _array(source) if is_root else _NOTHING
        if is_root and given.nbytes != made.nbytes * self.ranks:
            raise ValueError(f"source holds {given.nbytes} bytes, {self.ranks} parts of {made.nbytes} are due")
        sent = [made.nbytes] * self.ranks if is_root else [0] * self.ranks
        self._check(self._core.exchange(given, sent, made, self._to(root, made.nbytes)))
        return made

    def send_recv(self, source: Any, to: int, target: Any, source_rank: int) -> Array:
        """What source_rank sent to this rank, in target, while this rank's source goes to rank `to`. All ranks call."""
        given, made = _array(source), _array(target)
        for peer in (to, source_rank):
            self._is_root(peer)
        if (to == self.rank) != (source_rank == self.rank):
            raise ValueError("a rank that sends to itself gets from itself")
        self._check(self._core.exchange(given, self._to(to, given.nbytes), made, self._to(source_rank, made.nbytes)))
        return made

    def all_to_all_v(self, source: Any, sent: Sequence[int], target: Any, got: Sequence[int]) -> Array:
        """Part s of target, of got[s] elements, is what rank s had for this rank; part r of source, of sent[r], goes to rank r."""
        given, made = _array(source), _array(target)
        item = given.itemsize
        self._check(
            self._core.exchange(given, [int(n) * item for n in sent], made, [int(n) * made.itemsize for n in got])
        )
        return made

    def _is_root(self, root: int) -> bool:
        if not 0 <= root < self.ranks:
            raise ValueError(f"root {root} is none of the ranks 0..{self.ranks - 1}")
        return bool(self.rank == root)

    def _to(self, rank: int, size_bytes: int) -> list[int]:
        return [size_bytes if peer == rank else 0 for peer in range(self.ranks)]

    def _check(self, stopped: int) -> None:
        if not stopped:
            return
        _, primitive, _, peer, expected, seen = self._core.report()
        if stopped == 1 and primitive == _MEMORY:
            raise GaveUpError(
                f"rank {self.rank} of {self.name} was called for {expected} bytes, rank {peer} for something else: sizes and types must be the same, and on shared memory places and operations"
                if seen
                else f"rank {self.rank} of {self.name} could not reach {expected} bytes in the memory of rank {peer}. See that rank's log: it may have died."
            )
        if stopped == 1:
            what = PRIMITIVES[primitive] if primitive < len(PRIMITIVES) else "something"
            raise GaveUpError(
                f"rank {self.rank} of {self.name} waited {self._wait_s:g} s for {what} of rank {peer}: number {expected} was due, {seen} had come. "
                "See that rank's log: it has died, is busy, or called something else."
            )
        raise GaveUpError(f"rank {self.rank} of {self.name} had given up before; make a new communicator")


class _Common:
    """What threads of one process share: memory by number, each made by whoever asks first."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._lock = threading.Lock()
        self._memory: dict[int, list[Bytes]] = {}

    def memory(self, number: int, size_bytes: int) -> list[Bytes]:
        """Zeros of size_bytes for each rank, at a pair of cache lines."""
        with self._lock:
            if number not in self._memory:
                self._memory[number] = [_aligned(size_bytes) for _ in range(self.ranks)]
            made = self._memory[number]
            if made[0].size != size_bytes:
                raise ValueError(
                    f"a rank shares {made[0].size} bytes, this rank {size_bytes}: all must ask for the same"
                )
            return made

    def abort(self) -> None:
        """Ends the waits of all ranks."""
        control = Rank(0, self.memory(-1, Rank.control_bytes(self.ranks, CELL_BYTES)), CELL_BYTES, 0.0)
        for rank in range(self.ranks):
            control.abort(rank)


def _aligned(size_bytes: int) -> Bytes:
    whole = np.zeros(size_bytes + _PAIR_OF_LINES, np.uint8)
    begin = -whole.__array_interface__["data"][0] % _PAIR_OF_LINES
    return whole[begin : begin + size_bytes]


def run_threads(ranks: int, body: Callable[[Communicator], Result], *, wait_s: float = 30.0) -> list[Result]:
    """What body gives on each rank, the ranks being threads of this process.

    Raises what the first rank that failed raised; the waits of the others end then.

    >>> import numpy as np
    >>> run_threads(2, lambda comm: int(comm.all_reduce(np.array([comm.rank + 1]))[0]))
    [3, 3]
    """
    if ranks < 1:
        raise ValueError(f"a communicator has at least one rank, not {ranks}")
    common = _Common(ranks)
    results: dict[int, Result] = {}
    raised: list[BaseException] = []

    ended = threading.Semaphore(0)
    cores = sorted(os.sched_getaffinity(0))

    def as_rank(rank: int) -> None:
        try:
            if ranks <= len(cores):
                os.sched_setaffinity(0, {cores[rank]})  # of this thread alone
            results[rank] = body(Communicator._of_thread(rank, common, wait_s))
        except BaseException as error:  # raised again below, by the caller's thread
            raised.append(error)
            common.abort()
        finally:
            ended.release()

    threads = [threading.Thread(target=as_rank, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            ended.acquire()  # not join(): interrupted, it takes the thread for ended (Python 3.11, threading.py)
    except BaseException:  # Ctrl-C: a thread that still runs in native code when Python ends would abort the process
        common.abort()
        until = time.monotonic() + _GRACE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        raise
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return [results[rank] for rank in range(ranks)]


def _bits_of(array: Array) -> tuple[str, str] | None:
    """The integer type that holds elements of one of ml_dtypes' types, and our name of that type; Python's buffers have no word for it."""
    return _OF_ML_DTYPES.get(array.dtype.name)


def _array(given: Any) -> Array:
    if isinstance(given, np.ndarray):
        return given
    try:
        return np.from_dlpack(given)
    except AttributeError:
        raise ValueError(
            f"a {type(given).__name__} is no array: pass a numpy array, np.asarray(x), or a tensor that gives its memory by DLPack"
        ) from None
    except (BufferError, RuntimeError) as error:
        raise ValueError(
            f"the memory of a {type(given).__name__} is not to be had: {error}. Pass a tensor on the CPU, of a type that numpy has; x.view(torch.uint8) and dtype= for 8-bit floats"
        ) from None


def _from_environment(variable: str, given: Any, what: str, kind: type) -> Any:
    if given is not None:
        return given
    if (found := os.environ.get(variable)) is None:
        raise ValueError(
            f"the {what} of this process is not known: pass {what}=, or start it with `busbw.launching`, which sets {variable}"
        )
    return kind(found)


def _from_mpi(ranks: int) -> tuple[int, str]:
    """This process's rank, and a name that rank 0 has made. Raises ValueError if MPI runs another number of ranks, or on several machines."""
    try:
        from mpi4py import MPI  # noqa: PLC0415 - starts MPI
    except ImportError as error:
        raise ValueError(f'backend="mpi" needs mpi4py and an MPI library ({error}): pip install "busbw[mpi]"') from None
    world = MPI.COMM_WORLD
    if world.size != ranks:
        raise ValueError(f"MPI runs {world.size} ranks, {ranks} are asked for: start as many (mpirun -n {ranks})")
    if world.Split_type(MPI.COMM_TYPE_SHARED).size != ranks:
        raise ValueError("the ranks of MPI are on several machines; shared memory reaches one. Use one host")
    return world.rank, world.bcast(f"mpi-{os.getpid()}-{os.urandom(4).hex()}" if world.rank == 0 else None)


def _refuse(backend: str) -> None:
    if backend == "sim":
        raise ValueError('backend="sim" has no processes: busbw.execution.simulate runs a plan in the simulated memory')
    raise ValueError(f"no backend {backend!r}; there are cpu, sim, cuda, mpi")


def _on_gpus(
    ranks: int, *, rank: int | None = None, name: str | None = None, wait_s: float = 30.0, attach: bool = True
) -> Any:
    """A rank on a GPU. Raises CudaUnavailableError, which names what this machine lacks. attach says nothing here: GPUs map each other's memory."""
    from busbw.execution.cuda import CudaCommunicator  # noqa: PLC0415 - it imports this module

    place = _from_environment("BUSBW_RANK", rank, "rank", int)
    return CudaCommunicator(place, ranks, _from_environment("BUSBW_JOB", name, "name", str), wait_s=wait_s)
