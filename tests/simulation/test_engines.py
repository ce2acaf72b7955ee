"""Engines of a sweep: the figures of this process on clusters that run, and one message for those that do not.

Each cluster is a real one, started here; its tests are skipped where its package is not installed. `pip install 'busbw[engines,mpi]'`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from busbw.collectives.algorithms import direct_all_to_all
from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.observations.store import Store
from busbw.simulation import Kept, Point, engines, sweep
from busbw.simulation.engines import engine
from busbw.simulation.sweep import _outcome_elsewhere

CLUSTER = find_cluster("dgx-h100", 1)[0]
POINTS = [
    Point(direct_all_to_all().bind(8), CLUSTER, size, given={"size_bytes": size, "seed": 0})
    for size in (8, 1 << 10, 1 << 20)
]
SWEEP = ("simulate", "collective", "all-to-all", "--cluster", "dgx-h100", "--nodes", "2", "--bytes", "1MiB",
         "--speed-spread", "0.1", "--json", "--seeds")  # fmt: skip


def lines(outcomes):
    """What a store would keep of each point, byte for byte."""
    return {place: outcome.lines for place, outcome in outcomes}


@contextlib.contextmanager
def dask_cluster(workers):
    """The address of a scheduler of this process, and workers in threads."""
    distributed = pytest.importorskip("distributed", reason="needs busbw[engines]")
    with distributed.LocalCluster(
        n_workers=workers, processes=False, threads_per_worker=1, dashboard_address=None, protocol="tcp://", host="127.0.0.1"
    ) as cluster:  # fmt: skip
        yield cluster.scheduler_address.removeprefix("tcp://")


def test_a_dask_cluster_gives_what_this_process_gives(tmp_path):
    """And a second sweep runs nothing anew."""
    here = lines(sweep(POINTS, executor="here"))
    with dask_cluster(1) as address:
        assert lines(sweep(POINTS, executor=f"dask://{address}", kept=Kept(tmp_path))) == here
        kept = Kept(tmp_path)
        assert lines(sweep(POINTS, executor=f"dask://{address}", kept=kept)) == here and kept.found == 3


def test_a_scheduler_without_workers_is_said_in_time(monkeypatch):
    monkeypatch.setattr(engines, "_ANSWERED_WITHIN_S", 0.2)
    with (
        dask_cluster(0) as address,
        pytest.raises(InputError, match=r"no worker took a task within 0 s.*dask worker tcp"),
    ):
        list(sweep(POINTS, executor=f"dask://{address}"))


def test_a_scheduler_that_is_not_there_is_said_in_time(monkeypatch):
    pytest.importorskip("distributed", reason="needs busbw[engines]")
    monkeypatch.setattr(engines, "_CONNECTED_WITHIN_S", 0.3)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        name = f"dask://127.0.0.1:{free.getsockname()[1]}"
        with (
            pytest.raises(InputError, match=f"{name}: no scheduler of Dask answers .*Start one: dask scheduler"),
            engine(name),
        ):
            pass  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_another_program_on_the_port_is_no_scheduler(monkeypatch):
    """What it says is taken for the length of a message; whatever becomes of that is one line."""
    pytest.importorskip("distributed", reason="needs busbw[engines]")
    monkeypatch.setattr(engines, "_CONNECTED_WITHIN_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as peer:
                        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)

        threading.Thread(target=answer, daemon=True).start()
        name = f"dask://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match="no scheduler of Dask answers"), engine(name):
            pass


def test_another_version_on_a_worker_is_named(monkeypatch):
    """At the first task, and at each point: another worker may join later."""
    with ThreadPoolExecutor(1) as pool:
        engines._check("here", pool, "")
        monkeypatch.setattr(engines, "__version__", "9.9")
        with pytest.raises(InputError, match=r"busbw here is 9\.9, on a worker 0\..*pip install busbw==9\.9"):
            engines._check("here", pool, "")
    with pytest.raises(InputError, match=r"busbw is 9\.9 where the sweep was begun"):
        _outcome_elsewhere("9.9", POINTS[0])


def test_a_worker_process_that_dies_is_one_message_with_what_to_do():
    with (
        pytest.raises(InputError, match=r"local:2: a worker process ended.*the same command.*--engine local:1"),
        engine("local:2") as pool,
    ):
        pool.submit(os._exit, 1).result(timeout=60)  # fmt: skip


def busbw(*words, before=(), **given):
    return subprocess.run(
        [*before, sys.executable, *given.pop("module", ()), "-m", "busbw", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=120, **given,
    )  # fmt: skip


@pytest.fixture(scope="module")
def mpiexec():
    """Open MPI's, if mpi4py is there and works with it."""
    program = shutil.which("mpiexec.openmpi") or shutil.which("mpiexec")
    if program is None or not has("mpi4py"):
        pytest.skip("needs busbw[mpi] and mpiexec")
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return [program, *as_root, "--oversubscribe", "-n"]


def has(package):
    """Whether it can be imported, not importing it: MPI starts when it is."""
    from importlib.util import find_spec

    return find_spec(package) is not None


def test_workers_of_mpi_give_what_this_process_gives_and_a_kill_loses_nothing(mpiexec, tmp_path):
    """Rank 0 is killed as soon as a point is kept; MPI ends the others, and the same command goes on."""
    here = busbw(*SWEEP, "60", "--engine", "here")
    words = (*SWEEP, "60", "--engine", "mpi", "--store", tmp_path)
    command = [*mpiexec, "3", sys.executable, "-m", "mpi4py.futures", "-m", "busbw", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("*/manifest.json")) and time.monotonic() < until and started.poll() is None:
            time.sleep(0.01)
        driver = subprocess.run(["pgrep", "-o", "-P", str(started.pid)], capture_output=True, text=True, check=False)
        os.kill(int(driver.stdout), signal.SIGKILL)
        assert started.wait(60) != 0
    done = len(Store(tmp_path).held())
    assert 1 <= done < 60
    resumed = busbw(*words, before=[*mpiexec, "3"], module=("-m", "mpi4py.futures"))
    assert resumed.stdout == here.stdout, resumed.stderr
    assert f"60 points kept in {tmp_path}, {done} of them already there" in resumed.stderr


def test_processes_of_mpi_that_would_all_run_the_sweep_are_refused(mpiexec):
    refused = busbw(*SWEEP, "2", "--engine", "mpi", before=[*mpiexec, "2"])
    assert (
        "each of the 2 processes would run the whole sweep. Start it so: mpiexec -n N python -m mpi4py.futures"
        in refused.stderr
    )


def test_a_ray_cluster_gives_what_this_process_gives():
    pytest.importorskip("ray", reason="needs busbw[engines]")
    here = busbw(*SWEEP, "6", "--engine", "here")
    there = busbw(*SWEEP, "6", "--engine", "ray://", env={**os.environ, "RAY_AUTH_MODE": "disabled"})
    assert there.stdout == here.stdout, there.stderr


def test_a_ray_cluster_that_is_not_there_is_said_in_time():
    pytest.importorskip("ray", reason="needs busbw[engines]")
    asked = busbw(*SWEEP, "2", "--engine", "ray://127.0.0.1:1")
    assert asked.returncode == 2 and "no cluster of Ray answers" in asked.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [("cloud", "there is here, local"), ("local:0", "1 to 4096 processes"), ("dask://x:y", "no such engine")],
)
def test_engines_that_are_not_there(name, said):
    with pytest.raises(InputError, match=f"(?i){said}"), engine(name):
        pass


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("dask://", "distributed", "engines"), ("ray://", "ray", "engines"), ("mpi", "mpi4py.futures", "mpi")],
)
def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch, name, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"pip install 'busbw\[{extra}\]'"), engine(name):
        pass
