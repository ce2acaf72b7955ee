"""A store in an object store holds the same promises; tested against moto's server of S3."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyarrow import fs

from busbw.cli import main
from busbw.errors import InputError
from busbw.measuring import compare, results_of
from busbw.observations import Artefact, Circumstances, rows_of
from busbw.observations.store import MeasuredCell, Store, standard

CELL = MeasuredCell("all_reduce", 1024, "float32", "sum", 2, 1, False, "builtin")
NCCL_TESTS = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     8388608       2097152     float     sum      -1    85.31   98.33  172.08      0    85.31   98.33  172.08      0
"""
"""A row as all_reduce_perf prints it; the times are made."""
needs_moto = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("moto", "flask", "flask_cors")),
    reason="moto's server is not installed: pip install 'moto[server]'",
)

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket of a server on this machine, and the variables that lead there."""
    told = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_EC2_METADATA_DISABLED": "true"}
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with pytest.MonkeyPatch.context() as patched:
            for name, value in (told | {"BUSBW_S3_ENDPOINT": f"http://127.0.0.1:{port}"}).items():
                patched.setenv(name, value)
            client = fs.S3FileSystem(
                endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1", allow_bucket_creation=True
            )
            client.create_dir("bench")
            yield "s3://bench"
        server.stdin.close()


@needs_moto
def test_a_run_is_recorded_into_a_bucket_and_answers_queries(bucket):
    store = Store(f"{bucket}/recorded")
    with store.record("run", Circumstances("n1", (), {}, {"NCCL": "2.28"})) as run:
        run.samples(CELL, rank=[0, 1], time_ns=[5, 7], arrival_ns=[0, 3])
        run.commit()
        assert run.cells() == {CELL: 2}
        run.samples(CELL, rank=0, time_ns=[6])
        run.append("measurements", [{"time_ns": 6}])
    assert store.query("SELECT time_ns FROM samples WHERE rank = 0 ORDER BY ALL").column(0).to_pylist() == [5, 6]
    assert store.query("SELECT status, path FROM runs").to_pylist() == [{"status": "done", "path": "run"}]
    assert store.query("SELECT value FROM settings").to_pylist() == [{"value": "2.28"}]
    (row,) = store.query(standard.cell_percentiles(run.run_id)).to_pylist()
    assert (row["collective"], row["samples"], row["p50_ns"]) == ("all_reduce", 3, 6.0)
    with store.record("run", Circumstances(), run_id=run.run_id, resume=True) as again:
        assert again.cells() == {CELL: 3}


@needs_moto
def test_a_folder_is_copied_into_a_bucket_and_again_only_what_is_new(bucket, tmp_path):
    local, log = Store(tmp_path / "store"), tmp_path / "log"
    log.write_text("x")
    one = Artefact.of(log, "log")
    with local.begin([one]) as writer:
        writer.add(one, rows_of("counters", [{"artefact": one.sha256, "value": 4.0}]))
        writer.commit()
    with local.record("run", Circumstances()) as run:
        run.samples(CELL, rank=0, time_ns=[1])
    remote = Store(f"{bucket}/copied")
    assert set(local.copy_to(remote)) == {writer.run_id, run.run_id}
    assert local.copy_to(remote) == []
    with local.record("run", Circumstances(), run_id=run.run_id) as more:
        more.samples(CELL, rank=0, time_ns=[2])
    assert local.copy_to(remote) == [run.run_id]
    for sql in (
        "SELECT time_ns FROM samples ORDER BY ALL",
        "SELECT value, path FROM counters JOIN runs USING (artefact)",
        "FROM cells",
    ):
        assert remote.query(sql).to_pylist() == local.query(sql).to_pylist()


@needs_moto
def test_files_are_read_into_a_bucket_once_and_no_bucket_is_said_before_reading(bucket, tmp_path, capsys):
    """The same files make the same run, in a bucket as in a folder."""
    log = tmp_path / "log"
    log.write_text(NCCL_TESTS)

    def read(store):
        with pytest.raises(SystemExit) as ended:
            main(["read", str(log), "--store", str(store)])
        return ended.value.code, *capsys.readouterr()

    in_folder, first, again = read(tmp_path / "lab"), read(f"{bucket}/read"), read(f"{bucket}/read")
    assert [one[0] for one in (in_folder, first, again)] == [0, 0, 0], first
    run = in_folder[1].splitlines()[-1]
    assert [one[1].splitlines()[-1] for one in (first, again)] == [run, run]
    sql = "SELECT run_id, size_bytes, time_ns FROM measurements JOIN runs USING (artefact) ORDER BY ALL"
    rows = Store(f"{bucket}/read").query(sql).to_pylist()
    assert [row["size_bytes"] for row in rows] == [8388608, 8388608]
    assert rows == Store(tmp_path / "lab").query(sql).to_pylist()
    status, out, said = read("s3://nowhere/x")
    assert (status, out) == (2, "")
    assert "s3://nowhere/x: there is no bucket nowhere" in said


@needs_moto
def test_runs_in_a_bucket_are_compared(bucket):
    for run, took in (("a", 1000), ("b", 1500)):
        with Store(f"{bucket}/{run}").record(run, Circumstances()) as recorder:
            recorder.samples(CELL, rank=0, time_ns=[took])
    (a,), (b,) = (results_of(f"{bucket}/{run}")[0] for run in "ab")
    (difference,) = compare(a, b).differences
    assert difference.ratio == pytest.approx(1.5)


@needs_moto
def test_queries_of_a_bucket_read_nothing_else(bucket, tmp_path):
    store = Store(f"{bucket}/alone")
    with store.record("run", Circumstances()) as run:
        run.samples(CELL, rank=0, time_ns=[1])
    (tmp_path / "other.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match="the query was refused"):
        store.query(f"SELECT * FROM '{tmp_path / 'other.csv'}'")


@needs_moto
def test_what_needs_a_folder_says_so(bucket, tmp_path):
    store = Store(f"{bucket}/alone")
    with pytest.raises(
        InputError,
        match=r"this works on a folder\. Keep a store in a folder and copy it: busbw store copy DIR s3://bench/alone",
    ):
        store.compact()
    with pytest.raises(InputError, match="s3://nowhere/x: there is no bucket nowhere"):
        Store("s3://nowhere/x").query("SELECT 1")
    with pytest.raises(InputError, match="s3://bench/empty: holds no committed run"):
        Store(f"{bucket}/empty").query("SELECT 1")


@pytest.mark.parametrize("url", ["gs://bucket/x", "s3:///x", "s3://bucket/x?y", "https://host/x", "s3://key@bucket/x"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InputError, match="object stores are written s3://BUCKET/PREFIX"):
        Store(url)


def test_an_endpoint_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("BUSBW_S3_ENDPOINT", "ftp://x")
    with pytest.raises(InputError, match=r"ftp://x: the address of an S3 service is http\(s\)://HOST:PORT"):
        Store("s3://bucket")
    assert os.environ["BUSBW_S3_ENDPOINT"] == "ftp://x"
