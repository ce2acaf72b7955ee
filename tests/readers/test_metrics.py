"""Counters: Prometheus' text formats and the tables of dmon. Expected values are read off the text by eye."""

from __future__ import annotations

import calendar
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.observations import Artefact, Rows
from busbw.readers.gpu_monitor import READER as DMON
from busbw.readers.prometheus import LINE_READER, READER

from .host_fixtures import READERS, text_of
from .reading import columns, read_text


@pytest.mark.parametrize("name", READERS["prometheus"])
def test_a_scrape_is_told_by_its_first_lines(name: str):
    assert READER.sniff(text_of(name).encode()[: 1 << 16])


@pytest.mark.parametrize(
    "head",
    [
        b"# nThread 1 nGpus 8\n#  Rank  0 Group 0\n 1048576 262144 float sum -1 38.12 27.51\n",
        b"# Memory domain: self\n#     Component: self\n",
        b"UCX_TLS=all\n",
        b"loss 0.5\nloss 0.4\n",
        b'{"a": 1}\n',
        b"# TYPE x counter\nx 1\nsome other text\n",
        b"",
    ],
)
def test_other_texts_are_no_scrapes(head: bytes):
    assert not READER.sniff(head)


def test_dcgm_exporter():
    """Source: NVIDIA/dcgm-exporter#581. NaN is no value; escapes of a label are undone; a stamp of 13 digits counts milliseconds."""
    found = read_text(READER, text_of("prometheus/dcgm.txt"))
    assert columns(found.counters, "host", "device", "name", "value", "time_ns") == [
        ("host3", "nvidia3", "DCGM_FI_DEV_NVLINK_COUNT_TX_DISCARDS", 0.0, None),
        ("host3", "nvidia0", "DCGM_FI_DEV_XID_ERRORS", 94.0, 1796022754_765_000_000),
        ("host3", "nvidia0", "DCGM_FI_DEV_SM_CLOCK", None, None),
    ]
    labels = dict(found.counters[1]["labels"])
    assert labels["err_msg"] == 'Contained "ECC" error, a\\b'
    assert (labels["gpu"], labels["pci_bus_id"], labels["UUID"]) == ("0", "00000008:01:00.0", "GPU-0")


def test_node_exporter():
    found = read_text(READER, text_of("prometheus/infiniband.txt"))
    assert columns(found.counters, "device", "port", "value") == [
        ("roceP2p1s0f0", 1, 2.203141234e10),
        ("roceP2p1s0f1", 1, 0.0),
    ]
    recorded = read_text(READER, text_of("prometheus/node_exporter.txt"))
    assert len(recorded.counters) == len(
        [x for x in text_of("prometheus/node_exporter.txt").splitlines() if x[0] != "#"]
    )


def test_open_metrics():
    """Stamps in seconds, exemplars behind samples, a line that is no sample."""
    text = text_of("prometheus/openmetrics.txt").replace("# EOF", "this is no sample\n# EOF")
    found = read_text(READER, text)
    assert [row["value"] for row in found.counters] == [8, 11, math.inf, 1]
    assert [row.get("time_ns") for row in found.counters] == [1520879607_789_000_000] * 2 + [
        None,
        1520879607_000_000_000,
    ]
    assert found.counters[3]["host"] == "192.0.2.7"
    assert found.loss_counts == {"damaged-sample": 1}


def test_samples_in_another_text():
    """`kubectl exec ... curl` in a log: announced names are read without labels, others are not."""
    text = 'starting\n# TYPE up gauge\nup 1\nloss 0.5\nx{a="b"} 2\n# TYPE down gauge\ndown what\n'
    found = read_text(LINE_READER, text)
    assert columns(found.counters, "line", "name", "value") == [(3, "up", 1.0), (5, "x", 2.0)]
    assert found.loss_counts == {"damaged-sample": 1}


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=12), max_size=4),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)
def test_what_the_format_can_say_is_read(labels: dict[str, str], value: float):
    """Any text as a label's value, escaped as the format asks; reading gives it back."""
    labels = {
        name: text
        for name, text in labels.items()
        if name not in ("device", "port", "gpu", "node", "host", "hostname", "nodename", "instance")
    }
    labels = {
        name: "".join(c for c in text if c not in "\0" and not 0xD800 <= ord(c) < 0xE000)
        for name, text in labels.items()
    }
    written = ",".join(
        f'{n}="{t}"'
        for n, t in ((n, t.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for n, t in labels.items())
    )
    found = read_text(READER, f"# TYPE m gauge\nm{{{written}}} {value!r}\n")
    assert [(row["value"], dict(row["labels"])) for row in found.counters] == [(value, labels)]


def test_a_large_scrape_comes_in_batches(tmp_path: Path):
    """So that memory does not grow with the file; a line without end is left out and counted."""
    file = tmp_path / "scrape"
    file.write_text(
        "# TYPE m gauge\n" + "".join(f'm{{i="{i % 9}"}} {i}\n' for i in range(150_000)) + "m" * 100_000 + "\nm 7\n"
    )
    items = list(READER.read(Artefact.of(file, "scrape")))
    batches = [item.batch.num_rows for item in items if isinstance(item, Rows)]
    assert sum(batches) == 150_001
    assert max(batches) <= 1 << 16


def test_dmon_by_names_of_columns():
    found = read_text(DMON, text_of("dmon/nvidia_smi.txt"))
    power = [
        (row["line"], row["device"], row["value"], dict(row["labels"]))
        for row in found.counters
        if row["name"] == "pwr"
    ]
    assert power == [
        (3, "GPU 0", 119.0, {"unit": "W"}),
        (4, "GPU 1", 159.0, {"unit": "W"}),
        (7, "GPU 0", 120.0, {"unit": "W"}),
    ]
    assert "mtemp" not in {row["name"] for row in found.counters}  # `-` is no value
    assert found.loss_counts == {"damaged-value": 1, "damaged-row": 1}


def test_dmon_with_date_and_time():
    found = read_text(DMON, text_of("dmon/nvidia_smi_o_dt.txt"))
    first = calendar.timegm((2026, 1, 14, 15, 17, 9)) * 10**9
    assert [(row["name"], row["value"], row["time_ns"] - first) for row in found.counters] == [
        ("pwr", 218.0, 0), ("gtemp", 43.0, 0), ("pwr", 220.0, 10**9), ("gtemp", 43.0, 10**9),
    ]  # fmt: skip


def test_dcgmi_dmon():
    found = read_text(DMON, text_of("dmon/dcgmi.txt"))
    assert [(row["device"], row["name"], row["value"]) for row in found.counters] == [
        ("GPU 0", "GPUTL", 75), ("GPU 0", "MCUTL", 42), ("GPU 0", "POWER", 185.3), ("GPU 0", "TMPTR", 68), ("GPU 0", "TOTEC", 2.07e11),
        ("GPU 1", "GPUTL", 0), ("GPU 1", "MCUTL", 0), ("GPU 1", "POWER", 59.2), ("GPU 1", "TMPTR", 24),
    ]  # fmt: skip
    assert found.losses == []
