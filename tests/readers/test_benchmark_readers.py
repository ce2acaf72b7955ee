"""What nixlbench, NVSHMEM's tests and library, rccl-tests' files, IMB, DeepEP's tests and all_reduce_bench.py print.

Sources of the files are in fixtures/formats.json. Expected values are those of the files, in bytes, nanoseconds and bytes/s.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from busbw.cli.app import app
from busbw.readers import (  # fmt: skip
    deepep,
    imb,
    nccl_tests,
    nccl_tests_json,
    nixlbench,
    nvshmem_log,
    nvshmem_perftest,
    osu,
    rccl_tests_csv,
    torch_all_reduce_bench,
)

from .reading import FIXTURES, columns, read_text

ROW = ("size_bytes", "time_ns", "algbw_bytes_per_s", "table_index")
SECRETS = (
    "AKIAEXAMPLEEXAMPLE01", "wJalrXUtnFEMIexampleK7MDENGbPxRfiCYEXAMPLEKEY", "FwoGZXIvYXdzEXAMPLETOKENexample1234567890",
    "b3BlbnNlc2FtZWV4YW1wbGU9PQ",
)  # fmt: skip
"""What stands for secrets in nixlbench/grammar_obj_secrets.txt."""


def text(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def test_nixlbench_of_today():
    """0.027182 GB/s of 1e9; 602.8 us a block; the p99 is that of the transfer, 3844.0 us."""
    found = read_text(nixlbench.READER, text("nixlbench/a3mega_read.txt"))
    assert columns(found.measurements, *ROW, "p99_ns")[0] == (4096, 602800, pytest.approx(27.182e6), 0, 3844000)
    assert len(found.measurements) == 3
    assert found.losses == []


def test_nixlbench_of_2025_has_other_columns():
    """1254.6 MiB/s are 1.31554 GB/s within rounding; the first of the columns is taken, by its title."""
    found = read_text(nixlbench.READER, text("nixlbench/eos_2025_04.txt"))
    assert columns(found.measurements, *ROW)[0] == (4096, 3114, 1254.6 * 2**20, 0)
    assert pytest.approx(1254.6 * 2**20, rel=1e-4) == 1.31554e9
    assert found.events_named("nixlbench.table") == [{"table_index": "0", "batch_size": "64", "quantity": "worker"}]


def test_each_batch_size_and_the_aggregate_are_curves_of_their_own():
    found = read_text(nixlbench.READER, text("nixlbench/grammar_obj_secrets.txt"))
    assert columns(found.measurements, *ROW) == [
        (1048576, 26200, 40e9, 0),
        (1048576, None, 160e9, 1),
        (1048576, 23800, 44e9, 2),
        (1048576, None, 176e9, 3),
    ]
    quantities = [(event["batch_size"], event["quantity"]) for event in found.events_named("nixlbench.table")]
    assert quantities == [("1", "worker"), ("1", "aggregate"), ("2", "worker"), ("2", "aggregate")]


def test_secrets_of_the_configuration_reach_nothing(tmp_path: Path):
    """Not the rows, not the output of any verb, not the store, whose copy of the file has them blanked."""
    file = FIXTURES / "nixlbench" / "grammar_obj_secrets.txt"
    found = read_text(nixlbench.READER, file.read_bytes())
    (configuration,) = found.events_named("nixlbench.configuration")
    assert configuration == {
        "runtime_type": "ETCD", "worker_type": "nixl", "backend": "OBJ", "progress_threads": "0", "op_type": "WRITE", "num_threads": "4",
    }  # fmt: skip
    store = tmp_path / "store"
    said = [repr(found)]
    for arguments in (
        ["read", str(file), "--store", str(store)], ["read", str(file), "--json"], ["explain", str(file), "--json"],
        ["explain", str(file), "--report", str(tmp_path / "report.html")],
    ):  # fmt: skip
        said.append(CliRunner().invoke(app, arguments).output)
    files = [f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()]
    assert len(files) > 3
    for secret in SECRETS:
        assert secret.encode() in file.read_bytes()
        assert not any(secret in output for output in said)
        assert not any(secret.encode() in data for data in files)


def test_nvshmem_collectives():
    """The size of fcollect is the whole buffer: 0.036 GB/s are 8192 bytes in 225.2 us."""
    found = read_text(nvshmem_perftest.READER, text("nvshmem_perftest/fcollect_device_efa.txt"))
    names = (*ROW, "busbw_bytes_per_s", "collective", "count", "dtype")
    assert columns(found.measurements, *names)[2] == (
        8192, 225236, pytest.approx(0.036e9), 0, pytest.approx(0.035e9), "all_gather", 2048, "32-bit",
    )  # fmt: skip
    assert pytest.approx(0.036e9, rel=0.02) == 8192 / 225.236e-6
    assert len(found.measurements) == 4
    assert found.losses == []


def test_nvshmem_tables_of_every_shape():
    """A barrier prints threads where it has no size; a scope may be two words; message rates have no column and are counted."""
    found = read_text(nvshmem_perftest.READER, text("nvshmem_perftest/grammar.txt"))
    assert columns(found.measurements, *ROW, "collective") == [
        (1024, None, 5.123456e9, 0, None),
        (1048576, None, 48.25e9, 0, None),
        (8, 4250, None, 1, None),
        (8, 7125, None, 2, None),
        (0, 9500, None, 3, "barrier"),
        (4096, 16000, 0.256e9, 4, "all_reduce"),
        (4096, 20000, 0.205e9, 5, "all_reduce"),
    ]
    assert columns(found.measurements, "redop", "dtype", "min_ns", "max_ns")[5:] == [
        ("sum", "int32", None, None),
        ("sum", "int", 18500, 25250),
    ]
    assert found.loss_counts == {"left-out": 1}


def test_nvshmem_lines_for_machines_are_the_same_figures():
    found = read_text(nvshmem_perftest.READER, text("nvshmem_perftest/grammar_machine.txt"))
    assert columns(found.measurements, *ROW, "collective") == [
        (1024, None, 5.123456e9, 0, None),
        (1048576, None, 48.25e9, 0, None),
        (8, 7125, None, 1, None),
        (4096, 16000, None, 2, "all_reduce"),
    ]
    assert found.events_named("nvshmem_perftest.table")[1]["scope"] == "with _on_stream"


def test_nvshmem_says_which_transports_failed_and_which_are_used():
    found = read_text(nvshmem_log.READER, text("nvshmem_log/ibgda_init_failed_3.2.5.txt"))
    failed = [(e["fields"][0][1], e["level"]) for e in found.events if e["event"] == "nvshmem.transport_failed"]
    assert failed == [("ibrc", "warning"), ("IBGDA", "error"), ("ibrc", "warning")]
    assert [len(found.events_named(name)) for name in ("nvshmem.no_transport", "nvshmem.topology_failed")] == [1, 1]
    found = read_text(nvshmem_log.READER, text("nvshmem_log/address_handle_3.4.5.txt"))
    assert [event["event"] for event in found.events] == [
        "nvshmem.address_handle_failed", "nvshmem.ibgda_devices_partly", "nvshmem.ibgda_qp_failed", "nvshmem.connect_failed",
    ]  # fmt: skip
    found = read_text(nvshmem_log.READER, text("nvshmem_log/info_3.4.txt"))
    assert found.events_named("nvshmem.transport_selected") == [{"transport": "ibrc"}, {"transport": "IBGDA"}]
    assert found.events_named("nvshmem.nic_distance") == [{"distance": "PIX"}]
    assert found.events_named("nvshmem.heap")[0]["size_bytes"] == str(2**30)


RCCL = ("collective", "size_bytes", "time_ns", "algbw_bytes_per_s", "busbw_bytes_per_s", "ranks", "nodes", "in_place")


def test_rccl_tests_with_mpi_wrote_a_header_without_nodes():
    """Source: ROCm/rocm-systems#6004: 1 node, 8 ranks; read by its header, size would be 1."""
    found = read_text(rccl_tests_csv.READER, text("rccl_tests/mpi_header_without_nodes.csv"))
    assert columns(found.measurements, *RCCL, "wrong") == [
        ("all_reduce", 1048576, 55660, pytest.approx(18.84e9), pytest.approx(32.97e9), 8, 1, False, 0.0)
    ]
    assert pytest.approx(18.84e9, rel=1e-3) == 1048576 / 55.66e-6
    assert found.loss_counts == {"repaired": 1}


def test_rccl_tests_of_one_process_and_quotes_behind_blanks():
    found = read_text(rccl_tests_csv.READER, text("rccl_tests/grammar_single_process.csv"))
    assert columns(found.measurements, "ranks", "nodes", "in_place", "wrong", "dtype") == [
        (4, None, False, 0.0, "float"),
        (4, None, True, None, "float"),
    ]
    assert found.losses == []


def test_rccl_tests_with_the_right_header():
    fixed = (
        text("rccl_tests/mpi_header_without_nodes.csv").decode().replace("collective,ranks,", "collective,nodes,ranks,")
    )
    found = read_text(rccl_tests_csv.READER, fixed)
    assert columns(found.measurements, "ranks", "nodes") == [(8, 1)]
    assert found.losses == []


@pytest.mark.parametrize("name", ["pull_93.json", "grammar_list.json"])
def test_rccl_tests_json_line_by_line_and_as_a_list(name: str):
    data = text(f"rccl_tests/{name}")
    assert nccl_tests_json.READER.sniff(data)
    found = read_text(nccl_tests_json.READER, data)
    assert columns(found.measurements, "collective", "in_place") == [("all_reduce", False), ("all_reduce", True)]
    assert found.losses == []


def test_rccl_tests_print_what_nccl_tests_print():
    """Source: crickett-hpe/hpc-ai-envs#30; busbw is 7/4 of algbw with 8 ranks."""
    found = read_text(nccl_tests.READER, text("rccl_tests/mi300x.txt"))
    assert columns(found.measurements, *RCCL, "tool")[0] == (
        "all_reduce", 8388608, 91100, pytest.approx(92.08e9), pytest.approx(161.14e9), 8, 1, False, "rccl-tests",
    )  # fmt: skip
    assert pytest.approx(161.14, abs=0.01) == 92.08 * 7 / 4
    assert len(found.devices) == 8


def test_imb_collectives():
    found = read_text(imb.READER, text("imb/allreduce_2018_144.txt"))
    names = ("collective", "size_bytes", "time_ns", "min_ns", "max_ns", "ranks", "iterations", "tool_version")
    assert columns(found.measurements, *names)[2] == (
        "all_reduce", 268435456, 313516400, 308252230, 323720280, 144, 1, "2018",
    )  # fmt: skip
    assert found.losses == []


@pytest.mark.parametrize("version", ["2021.2", None])
def test_megabytes_of_imb_since_2018(version: str | None):
    """2 * 262144 bytes in 33.48 us are 15660.37e6 bytes/s: so it is 1e6 also where the version was cut off."""
    data = text("imb/sendrecv_hdr100_2021.txt").decode()
    found = read_text(imb.READER, data if version else data.partition("\n")[2])
    assert columns(found.measurements, "size_bytes", "algbw_bytes_per_s")[0] == (262144, pytest.approx(15660.37e6))
    assert pytest.approx(15660.37e6, rel=2e-4) == 2 * 262144 / 33.48e-6
    assert found.losses == []


def test_imb_tables_of_every_shape():
    """Groups, no size, overlap, and a size that failed; blocks become buffers: 2 * 1024 and 4 * 1024."""
    found = read_text(imb.READER, text("imb/grammar.txt"))
    assert columns(found.measurements, "collective", "size_bytes", "time_ns", "ranks", "table_index") == [
        ("send_recv", 0, 1020, 2, 0),
        ("send_recv", 8, 1050, 2, 0),
        ("send_recv", 1048576, 95100, 2, 0),
        ("all_gather", 2048, 2200, 2, 1),
        ("all_gather", 2048, 2500, 2, 1),
        ("barrier", 0, 1870, 4, 2),
        ("all_reduce", 4, 6500, 4, 3),
        ("all_to_all", 4096, 3200, 4, 4),
    ]
    assert found.events_named("imb.sample_failed") == [{"gigabytes": "2.100"}]
    assert found.losses == []


def test_deepep_low_latency():
    found = read_text(deepep.READER, text("deepep/low_latency_h800.txt"))
    assert columns(found.measurements, *ROW, "min_ns", "max_ns") == [
        (None, 521970, pytest.approx(42.24e9), 0, 517440, 527330),
        (None, 522160, pytest.approx(42.23e9), 0, 517090, 527940),
        (None, 71060, pytest.approx(9.99e9), 1, None, None),
        (None, 97830, pytest.approx(14.03e9), 2, None, None),
    ]


def test_deepep_tuning():
    """Only the best of each becomes a row, that over RDMA."""
    found = read_text(deepep.READER, text("deepep/internode.txt"))
    assert columns(found.measurements, "table_index", "algbw_bytes_per_s") == [(3, 4.47e9), (3, 4.72e9), (4, 4.71e9)]
    assert [event["rdma_gbps"] for event in found.events_named("deepep.tuning")] == ["43.81", "39.51"]


def test_all_reduce_bench():
    found = read_text(torch_all_reduce_bench.READER, text("torch_all_reduce_bench/h200_8.txt"))
    assert columns(found.measurements, "size_bytes", "busbw_bytes_per_s", "algbw_bytes_per_s", "ranks")[-1] == (
        16 * 2**30, pytest.approx(482.26e9), pytest.approx(275.58e9), 8,
    )  # fmt: skip
    assert pytest.approx(482.26, abs=0.02) == 275.58 * 7 / 4
    assert columns(found.devices, "kind", "name") == [("gpu", "NVIDIA H200")]
    assert found.losses == []


def test_osu_tests_of_every_shape():
    """From the grammar of 7.4 (facts: formats of OSU); a lone percentile column is called P99 also for 99.9 and stays unknown."""
    found = read_text(osu.READER, text("osu/grammar_variants.txt"))
    assert columns(found.measurements, "tool", "size_bytes", "time_ns", "algbw_bytes_per_s", "p99_ns", "wrong") == [
        ("osu_bw", 1048576, None, pytest.approx(11500.25e6), None, None),
        ("osu_mbw_mr", 4096, None, 8000e6, None, None),
        ("osu_allreduce", 16, 1250, None, None, 0.0),
        ("osu_allreduce", 8, 1500, None, 4200, None),
        ("osu_allreduce", 8, 1500, None, None, None),
        ("osu_iallreduce", 4, 2100, None, None, None),
        ("osu_barrier", 0, 1230, None, None, None),
        ("osu_put_latency", 8, 750, None, None, None),
    ]
    assert 4096 * 1953125 == 8000e6
    assert found.losses == []
