"""NCCL by its own functions, against a library that does on host memory what nccl.h says: every result is checked by the measuring loop itself."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.execution.fake_cuda import FakeDriver, bytes_at

from busbw.errors import InputError
from busbw.execution.cuda_driver import CudaUnavailableError
from busbw.measuring import nccl_library
from busbw.measuring.measure import measure
from busbw.measuring.nccl_library import Library, Nccl, NcclError, UniqueId, start
from busbw.measuring.request import COLLECTIVES, POINT_TO_POINT, Request

TYPES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
OPS = [np.add, np.multiply, np.maximum, np.minimum, np.add]
AVG = 4


class _World:
    """Ranks of one communicator, which are threads: each call puts its argument down, and goes on once all have."""

    def __init__(self, ranks):
        self.ranks, self._lock = ranks, threading.Condition()
        self._there, self._taken, self.posts = {}, 0, {}
        self._barrier = threading.Barrier(ranks, timeout=20)

    def all_of(self, rank, value):
        """What every rank gave to this call."""
        self._there[rank] = value
        self._barrier.wait()
        found = [self._there[one] for one in range(self.ranks)]
        self._barrier.wait()
        return found

    def post(self, source, target, data):
        with self._lock:
            self.posts.setdefault((source, target), []).append(data)
            self._lock.notify_all()

    def take(self, source, target):
        with self._lock:
            assert self._lock.wait_for(lambda: self.posts.get((source, target)), 20), f"{source} never sent to {target}"
            return self.posts[source, target].pop(0)


class _Fake:
    """libnccl.so.2 of one rank. A call is done when it returns; what a group holds, at its end: all sends before all receives."""

    def __init__(self, world, fails=""):
        self._world, self._fails, self._rank, self._depth, self._group = world, fails, None, 0, []

    def __getattr__(self, name):
        if not name.startswith("nccl"):
            raise AttributeError(name)
        body = getattr(_Fake, "_" + name[4:].lower())

        def function(*arguments):
            assert len(arguments) == len(function.argtypes), name
            if name == self._fails:
                return 3
            return body(self, *arguments) or 0

        setattr(self, name, function)
        return function

    def _geterrorstring(self, status):
        return f"internal error {status}".encode()

    def _getlasterror(self, comm):
        return b"no reason"

    def _getversion(self, number):
        number._obj.value = 22803

    def _commdestroy(self, comm):
        assert comm == 77

    def _comminitrank(self, comm, ranks, unique, rank):
        assert ranks == self._world.ranks
        assert len({bytes(one) for one in self._world.all_of(rank, unique)}) == 1
        self._rank, comm._obj.value = rank, 77

    def _groupstart(self):
        self._depth += 1

    def _groupend(self):
        self._depth -= 1
        for is_receive, peer, address, size in sorted(self._group, key=lambda one: one[0]):
            if is_receive:
                bytes_at(address, size)[:] = self._world.take(peer, self._rank)
            else:
                self._world.post(self._rank, peer, bytes_at(address, size).copy())
        self._group = []

    def _send(self, address, count, kind, peer, comm, stream):  # noqa: PLR0917 - as in nccl.h
        assert self._depth and kind == 1
        self._group.append((False, peer, address, count))

    def _recv(self, address, count, kind, peer, comm, stream):  # noqa: PLR0917 - as in nccl.h
        assert self._depth and kind == 1
        self._group.append((True, peer, address, count))

    def _all(self, address, count, kind):
        dtype = np.dtype(TYPES[kind])
        return self._world.all_of(self._rank, bytes_at(address, count * dtype.itemsize).view(dtype).copy())

    def _total(self, parts, op):
        total = parts[0]
        for part in parts[1:]:
            total = OPS[op](total, part)
        if op == AVG:
            total = (total / len(parts)).astype(total.dtype)
        return total

    def _put(self, address, values):
        bytes_at(address, values.nbytes)[:] = values.view(np.uint8)

    def _allreduce(self, source, target, count, kind, op, comm, stream):  # noqa: PLR0917 - as in nccl.h
        self._put(target, self._total(self._all(source, count, kind), op))

    def _reduce(self, source, target, count, kind, op, root, comm, stream):  # noqa: PLR0917 - as in nccl.h
        total = self._total(self._all(source, count, kind), op)
        if self._rank == root:
            self._put(target, total)

    def _broadcast(self, source, target, count, kind, root, comm, stream):  # noqa: PLR0917 - as in nccl.h
        self._put(target, self._all(source if self._rank == root else target, count, kind)[root])

    def _reducescatter(self, source, target, count, kind, op, comm, stream):  # noqa: PLR0917 - as in nccl.h
        total = self._total(self._all(source, count * self._world.ranks, kind), op)
        self._put(target, total[self._rank * count : (self._rank + 1) * count])

    def _allgather(self, source, target, count, kind, comm, stream):  # noqa: PLR0917 - as in nccl.h
        self._put(target, np.concatenate(self._all(source, count, kind)))

    _getuniqueid = None


def _measured(request):
    """What rank 0 measured; each rank is a thread with a library and a driver of its own."""
    world, drivers = _World(request.ranks), [FakeDriver(8) for _ in range(request.ranks)]

    def body(rank):
        backend = Nccl(Library(_Fake(world)), drivers[rank], rank, request.ranks, rank, UniqueId)
        found = measure(backend, request)
        backend.close()
        return found

    with ThreadPoolExecutor(request.ranks) as pool:
        return next(iter(list(pool.map(body, range(request.ranks)))))


@pytest.mark.parametrize("name", [name for name in (*COLLECTIVES, *POINT_TO_POINT) if name != "barrier"])
def test_every_collective_gives_what_it_must(name):
    """Three ranks with a root that is not 0 where two are not all; 13 and 96 bytes: no multiple of ranks or elements, and one of both."""
    ranks = 2 if name in POINT_TO_POINT else 3
    root = 1 if name in ("broadcast", "reduce", "gather", "scatter") else 0
    found = _measured(Request(name, ranks, (13, 96), root=root, iterations=1, warm_up=0))
    assert [half.wrong for row in found.rows for half in row.halves()] == [0] * sum(1 for row in found.rows for _ in row.halves())  # fmt: skip
    assert found.about["nccl"] == "2.28.3"


@pytest.mark.parametrize(("dtype", "op"), [("float16", "avg"), ("int8", "max"), ("uint64", "prod"), ("float64", "min")])
def test_types_and_operations_have_the_numbers_of_nccl_h(dtype, op):
    """A wrong number gives a wrong result: the library above takes them as nccl.h lists them."""
    found = _measured(Request("all_reduce", 2, (48,), dtype, op, iterations=1, warm_up=0))
    assert all(half.wrong == 0 for row in found.rows for half in row.halves())


def test_buffers_are_given_back():
    """What nobody holds any more is freed, as sizes come one after the other."""
    driver = FakeDriver(1)
    backend = Nccl(Library(_Fake(_World(1))), driver, 0, 1, 0, UniqueId)
    before = driver.held().count("memory")
    part = backend.empty(1 << 20, "float32")[5:9]
    assert (driver.held().count("memory"), part.count) == (before + 1, 4)
    del part
    assert driver.held().count("memory") == before


def test_what_fails_is_said_in_the_words_of_nccl():
    backend = Nccl(Library(_Fake(_World(1), "ncclAllGather")), FakeDriver(1), 0, 1, 0, UniqueId)
    request = Request("all_gather", 1, (8,))
    call = backend.bind(request, backend.empty(2, "float32"), backend.empty(2, "float32"), 2)
    with pytest.raises(NcclError, match=r"ncclAllGather: internal error 3\. no reason \(3\)\. NCCL_DEBUG=WARN"):
        call(1)


def test_all_that_is_missing_is_one_message(monkeypatch, tmp_path):
    """Library and driver; a host with fewer GPUs than ranks; a file that is no NCCL."""

    def no_driver():
        raise CudaUnavailableError("NVIDIA's driver is not on this machine.")

    monkeypatch.setattr(nccl_library, "open_driver", no_driver)
    monkeypatch.setattr(nccl_library, "library_path", lambda: None)
    with pytest.raises(
        InputError, match=r"no libnccl\.so\.2: pip .* Then: NVIDIA's driver is not on this machine\. --backend torch"
    ):
        start(0, 2, str(tmp_path))
    monkeypatch.setattr(nccl_library, "open_driver", lambda: FakeDriver(1))
    monkeypatch.setattr(nccl_library, "library_path", lambda: ctypes.util.find_library("c"))
    with pytest.raises(InputError, match=r"can't be used: .*ncclGetVersion.* NCCL 2\.7 or later"):
        start(0, 2, str(tmp_path))
    monkeypatch.setattr(nccl_library.ctypes, "CDLL", lambda _: _Fake(_World(2)))
    with pytest.raises(InputError, match="rank 1 is number 1 of its host, counted from 0, and sees 1 GPUs"):
        start(1, 2, str(tmp_path))
