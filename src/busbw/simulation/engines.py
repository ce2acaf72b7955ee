"""Where the points of a sweep run: anything that is a `concurrent.futures.Executor`, named as a text.

here              one after another in this process
local, local:N    processes of this machine, as many as cores, or N
dask://HOST:PORT  a Dask scheduler; dask:// starts one here
ray://HOST:PORT   a Ray cluster; ray:// starts one here
mpi               mpi4py's workers: mpiexec -n N python -m mpi4py.futures -m busbw simulate ...
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from busbw.errors import InputError

__all__ = ["ENGINES", "engine"]

ENGINES = "here, local, local:N, dask://HOST:PORT, ray://HOST:PORT, mpi"
_MOST_PROCESSES = 4096


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
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
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


def _missing(package: str, extra: str) -> InputError:
    return InputError(
        f"--engine {package} needs the package {package}, which is not installed: pip install 'busbw[{extra}]'."
    )


@contextlib.contextmanager
def _dask(address: str | None) -> Iterator[Executor]:
    try:
        from distributed import Client  # noqa: PLC0415 - an extra
    except ImportError:
        raise _missing("dask", "engines") from None
    try:
        client: Any = (
            Client(f"tcp://{address}", timeout="10s")
            if address
            else Client(processes=True, threads_per_worker=1, dashboard_address=None)
        )
    except (OSError, TimeoutError) as error:
        raise InputError(
            f"--engine dask://{address or ''}: no scheduler answers ({error}). Start one: dask scheduler."
        ) from None
    with contextlib.closing(client):
        # Points with equal arguments are not the same future: pure=False.
        executor: Executor = client.get_executor(pure=False)
        yield executor


@contextlib.contextmanager
def _ray(address: str | None) -> Iterator[Executor]:
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError:
        raise _missing("ray", "engines") from None
    try:
        ray.init(address=f"ray://{address}" if address else None, log_to_driver=False, configure_logging=False)
    except (ConnectionError, OSError, RuntimeError) as error:
        raise InputError(
            f"--engine ray://{address or ''}: no cluster answers ({error}). Start one: ray start --head."
        ) from None
    try:
        yield _RayExecutor(ray)
    finally:
        ray.shutdown()


class _RayExecutor(Executor):
    """Ray's tasks as futures; Ray has no executor of its own."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """A task of the cluster."""
        future: Future[Any] = self._ray.remote(work).remote(*given, **named).future()
        return future


@contextlib.contextmanager
def _mpi() -> Iterator[Executor]:
    try:
        from mpi4py.futures import MPIPoolExecutor  # noqa: PLC0415 - an extra
    except ImportError:
        raise _missing("mpi4py", "mpi") from None
    with MPIPoolExecutor() as pool:
        yield pool
