"""Output of benchmarks as the score takes it: where it ran is found in the file or given, else rows are refused with their kind."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.accuracy import as_measured, observed_tables, read_scorable, score
from busbw.errors import InputError
from busbw.hardware import cluster_alike, find_cluster
from busbw.observations import Artefact, rows_of

DEVICE = "#  Rank {rank:2d} Group  0 Pid  14840 on host{host} device  {rank} [0x01] {gpu}\n"
TABLE = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1     4000  268.44  469.76      0     4100  261.89  458.30      0
"""
OSU = """\
# OSU MPI-CUDA Allreduce Latency Test v7.4
# Datatype: MPI_INT.
# Size       Avg Latency(us)
1048576                60.00
"""


def read(tmp_path, text, name="out.log", **where):
    path = tmp_path / name
    path.write_text(text)
    (table,) = read_scorable([str(path)], **where).observed
    return table


def log(gpu="NVIDIA H100 80GB HBM3", ranks=8, hosts=1, program="# Collective test starting: all_reduce_perf\n"):
    devices = "".join(DEVICE.format(rank=r, host=r * hosts // ranks, gpu=gpu) for r in range(ranks))
    return program + devices + TABLE


def test_a_log_of_one_node_says_all_and_is_scored_out_of_place(tmp_path):
    """Measured are 4000 us; the other half, 4100 us, is reported apart."""
    (scored,) = score([read(tmp_path, log())]).tables
    assert [row.measured_s for row in scored.rows] == [pytest.approx(4000e-6)]
    assert [row.measured_s for row in scored.rows_in_place] == [pytest.approx(4100e-6)]
    assert scored.table.platform == "H100-SXM-80GB"
    assert scored.rows[0].error < 0.2


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (log(gpu="Graphics Device"), "hardware-unknown"),
        (log(ranks=16, hosts=2).replace("469.76", "503.32").replace("458.30", "491.04"), "hardware-unknown"),
        (
            log(program="").replace("469.76", "234.89").replace("458.30", "229.15").replace(" sum", "none"),
            "layout-unknown",
        ),
        (OSU, "layout-unknown"),
    ],
    ids=["no-gpu", "no-nics", "no-collective", "no-ranks"],
)
def test_what_the_file_does_not_say_is_a_refusal_with_its_kind(tmp_path, text, kind):
    table = read(tmp_path, text)
    assert table.rows == ()
    assert [refusal.kind for refusal in table.refused] == [kind]


def test_a_given_cluster_says_what_the_file_leaves_open(tmp_path):
    cluster, _ = find_cluster("dgx-h100")
    two = read(
        tmp_path,
        log(gpu="x", ranks=16, hosts=2).replace("469.76", "503.32").replace("458.30", "491.04"),
        cluster=cluster,
    )
    assert two.rows[0].where.domains == 2
    osu = read(tmp_path, OSU, "osu.txt", cluster=cluster, nodes=4)
    assert osu.rows[0].where.ranks == 32
    assert osu.group == "p2p"


def test_a_run_over_sockets_is_predicted_over_sockets(tmp_path):
    said = "host0:1:1 [0] NCCL INFO Using network Socket\n"
    cluster, _ = find_cluster("dgx-h100")
    text = log(ranks=16, hosts=2).replace("469.76", "503.32").replace("458.30", "491.04")
    assert read(tmp_path, said + text, cluster=cluster).rows[0].where.network == "sockets"


def test_variables_of_the_log_limit_what_may_have_run(tmp_path):
    said = "host0:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring.\n"
    assert read(tmp_path, said + log()).rows[0].algorithms == {"Ring"}


@pytest.mark.parametrize(("kind", "refusal"), [("training", "layout-unknown"), ("inference", "unsupported")])
def test_rows_of_workloads_that_cannot_be_predicted_are_counted_each_by_its_id(tmp_path, kind, refusal):
    (tmp_path / "steps.json").write_text(
        json.dumps({"id": "steps", "kind": kind, "rows": [{"id": "steps/000"}, {"id": "steps/001"}, 3]})
    )
    (table,) = read_scorable([str(tmp_path)]).workloads
    found = score([table]).to_json()
    assert [(one["row"], one["kind"]) for one in found["sources"][0]["refused"]] == [
        ("steps/000", refusal), ("steps/001", refusal), (2, refusal),
    ]  # fmt: skip
    assert found["groups"] == [{"name": kind, "rows": 0, "median_abs_pct": None, "p90_abs_pct": None, "refused": 3}]


def test_what_holds_no_table_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing to see\n")
    assert "notes.txt: no table of a benchmark" in read_scorable([str(tmp_path)]).unread[0]


@pytest.mark.parametrize(
    ("gpu", "ranks", "nodes", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 8, 1, ("dgx-h100", 1)),
        ("NVIDIA H100 80GB HBM3", 4, None, ("dgx-h100", 1)),
        ("NVIDIA A100-SXM4-40GB", 8, 1, ("dgx-a100", 1)),
        ("NVIDIA GB200", 72, 18, ("gb200-nvl72", 18)),
        ("AMD Instinct MI300X", 8, 1, ("mi300x-8", 1)),
    ],
)
def test_a_cluster_alike_has_the_gpu_and_the_ranks(gpu, ranks, nodes, found):
    cluster = cluster_alike(gpu, ranks, nodes)
    assert (cluster.name, cluster.nodes) == found


def test_several_nodes_are_only_alike_with_their_network_known():
    """A blueprint's NICs say nothing of the machine measured; 4 NICs of 200 Gb/s carry 100 GB/s together."""
    with pytest.raises(InputError, match="how many NICs"):
        cluster_alike("NVIDIA H100 80GB HBM3", 16, 2)
    cluster = cluster_alike("NVIDIA H100 80GB HBM3", 16, 2, nic_gbps=200, nics=4)
    assert cluster.node.network_bytes_per_s == pytest.approx(100e9)


ODD = st.one_of(st.none(), st.integers(-(2**62), 2**62))


@given(
    rows=st.lists(
        st.fixed_dictionaries({
            "size_bytes": ODD, "time_ns": ODD, "ranks": st.one_of(st.none(), st.integers(-5, 2**31 - 1)), "nodes": st.one_of(st.none(), st.integers(-5, 2**31 - 1)),
            "in_place": st.one_of(st.none(), st.booleans()), "busbw_bytes_per_s": st.one_of(st.none(), st.floats()),
            "collective": st.sampled_from(["all_reduce", "all_to_all", "barrier", None]), "tool": st.sampled_from(["nccl-tests", "osu", None]),
        }),
        min_size=1, max_size=4,
    ),
    given_cluster=st.booleans(),
)  # fmt: skip
def test_whatever_a_reader_gives_each_row_out_of_place_is_scored_or_refused(rows, given_cluster):
    cluster = find_cluster("dgx-a100")[0] if given_cluster else None
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        file = Path(folder) / "any.txt"
        file.write_text("any")
        where = [{"artefact": "a", "line": line, "byte_offset": 0} for line in range(len(rows))]
        made = rows_of("measurements", [place | row for place, row in zip(where, rows, strict=True)])
        patch.setattr("busbw.accuracy.observed.read_artefact", lambda *_: iter([made]))
        tables, _ = observed_tables(Artefact.of(file, "any.txt"))
    assert sum(len(table.rows) for table in tables) == len(rows)
    found = score(as_measured(tables, cluster))
    assert len(found.rows) + found.refused == sum(len(table.shown_rows) for table in tables)
