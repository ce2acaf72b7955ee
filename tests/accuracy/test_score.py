"""The score's arithmetic on small invented tables, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.accuracy import REFUSALS, read_measured, score, shipped_reports
from busbw.accuracy.measured import PEAK_BYTES
from busbw.errors import InputError
from busbw.prediction import Situation, predict_in

HARDWARE = {"gpu": "H100 SXM5 80GB", "gpus_per_node": 8, "nodes": 1, "intra_link": "NVLink4 + NVSwitch", "nic": "none used",
            "nics_per_node": 0, "nic_gbps": 0, "fabric": "none", "switch_inline_reduction": {"nvls": "yes"}}  # fmt: skip
ONE_NODE = Situation(8, 1, "hopper", 450e9, "switch", "infiniband", 0.0, 1, True, False, "NCCL", "dgx-h100")


def write(tmp_path, name="invented", **changes):
    document = {"id": name, "campaign": name, "hardware": HARDWARE, "software": {"library": "NCCL", "env": {}}, "tool": "nccl-tests",
                "collective": "all_reduce", "ranks": 8, "health": "healthy", "rows": []} | changes  # fmt: skip
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


def test_errors_are_relative_to_what_was_measured(tmp_path):
    """Measured are 1, 0.8 and 0.5 times the prediction: errors 0, 0.25, 1; median 25 %, p90 0.25 + 0.8 * 0.75 = 85 %."""
    sizes = [1 << 20, 1 << 25, 1 << 30]
    took = predict_in(ONE_NODE, "all_reduce", sizes).time_s
    rows = [{"bytes": s, "time_us": t * f * 1e6} for s, t, f in zip(sizes, took.tolist(), (1, 0.8, 0.5), strict=True)]
    found = score([read_measured(write(tmp_path, rows=rows))]).to_json()
    assert found["schema"] == 1
    assert found["overall"] == {"rows": 3, "median_abs_pct": 25.0, "p90_abs_pct": 85.0, "refused": 0}
    first = found["sources"][0]["rows"][0]
    assert first["size_bytes"] == 1 << 20
    assert first["unit"] == "s"
    assert first["low"] <= first["predicted"] <= first["high"]


def test_a_row_without_time_takes_it_from_bus_bandwidth(tmp_path):
    """8 ranks: 350 GB/s of busbw is 200 GB/s of algbw; 2e9 bytes take 10 ms."""
    (row,) = read_measured(write(tmp_path, rows=[{"bytes": 2_000_000_000, "time_us": None, "busbw_GBps": 350}])).rows
    assert row.time_s == pytest.approx(0.01)


def test_the_best_of_a_sweep_is_compared_where_bus_bandwidth_is_flat(tmp_path):
    """A row of nccl-tests with bus bandwidth and no size states the best of a sweep. Twice the size is half the error of 1 %."""
    table = read_measured(write(tmp_path, rows=[{"bytes": None, "time_us": None, "busbw_GBps": 480}]))
    found = score([table])
    twice, once = (
        predict_in(ONE_NODE, "all_reduce", [size]).busbw_bytes_per_s for size in (2 * PEAK_BYTES, PEAK_BYTES)
    )
    assert twice / once == pytest.approx(1, abs=0.01)
    assert found.rows[0].is_peak
    assert found.rows[0].measured_s == pytest.approx(PEAK_BYTES * 1.75 / 480e9)
    assert found.to_json()["sources"][0]["rows"][0]["size_bytes"] is None


@pytest.mark.parametrize(
    ("changes", "row", "kind"),
    [
        ({"tool": "a profiler"}, {"bytes": None, "busbw_GBps": 480}, "not-measured"),
        ({}, {"bytes": 1024, "time_us": 0, "busbw_GBps": 0}, "not-measured"),
        ({"ranks": None}, {"bytes": 1024, "time_us": 10}, "layout-unknown"),
        ({"ranks": 7, "hardware": HARDWARE | {"nodes": 2}}, {"bytes": 1024, "time_us": 10}, "layout-unknown"),
        ({"hardware": HARDWARE | {"gpu": "Abacus 3"}}, {"bytes": 1024, "time_us": 10}, "hardware-unknown"),
        ({"collective": "moe_dispatch_combine"}, {"bytes": 1024, "time_us": 10}, "unsupported"),
        ({}, "no object", "layout-unknown"),
        ({}, {"bytes": 1e400, "time_us": 10}, "not-measured"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_its_kind(tmp_path, changes, row, kind):
    found = score([read_measured(write(tmp_path, rows=[row], **changes))])
    assert found.rows == []
    assert [(refusal.row, refusal.kind) for refusal in found.tables[0].refused] == [(0, kind)]
    assert found.to_json()["overall"] == {"rows": 0, "median_abs_pct": None, "p90_abs_pct": None, "refused": 1}


def test_settings_of_the_run_limit_what_it_may_have_been(tmp_path):
    """With NCCL_ALGO=Ring the model must not take NVLS, which is faster at 8 GiB."""
    row = [{"bytes": 1 << 33, "time_us": 31307}]
    forced = {"library": "NCCL", "env": {"NCCL_ALGO": "Ring"}}
    free, ring = (
        score([read_measured(write(tmp_path, rows=row, **changes))]).rows[0] for changes in ({}, {"software": forced})
    )
    assert ring.predicted_s > 1.15 * free.predicted_s


@pytest.mark.parametrize("text", ["", "[1]", '{"rows": 3}', "[" * 100_000])
def test_what_is_no_table_is_an_error_that_names_the_file(tmp_path, text):
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"odd\.json: no (JSON|measured/1 table)"):
        read_measured(path)


def test_a_table_about_something_slow_is_not_among_the_scored(tmp_path):
    assert not read_measured(write(tmp_path, health="sick")).is_scored
    assert read_measured(write(tmp_path)).is_scored


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.just([]), st.just({})
)
KEYS = ("gpu", "gpus_per_node", "nodes", "nics_per_node", "nic_gbps", "fabric", "intra_link", "switch_inline_reduction")


@given(
    hardware=st.dictionaries(st.sampled_from(KEYS), ODD),
    gpu=st.sampled_from(["H100 SXM5 80GB", "GB200", "MI300X", "H100 NVL or PCIe", "none"]),
    row=st.dictionaries(st.sampled_from(["bytes", "time_us", "busbw_GBps", "gpus", "nodes", "algorithm"]), ODD),
    more=st.dictionaries(st.sampled_from(["software", "ranks", "collective", "rows_in_place", "campaign"]), ODD),
)
def test_every_row_of_a_strangers_table_is_scored_or_refused_with_a_kind(tmp_path_factory, hardware, gpu, row, more):
    made = {"hardware": HARDWARE | {"gpu": gpu} | hardware, "rows": [row, {"bytes": 1024, "time_us": 10.0}]} | more
    found = score([read_measured(write(tmp_path_factory.mktemp("odd"), **made))])
    assert len(found.rows) + found.refused == 2
    assert all(refusal.kind in REFUSALS for table in found.tables for refusal in table.refused)
    assert all(0 < scored.low_s <= scored.predicted_s <= scored.high_s for scored in found.rows)


def test_shipped_reports_are_read_in_full():
    """Every row of every report has hardware that the catalogue knows, and says where it is from."""
    for table in shipped_reports():
        assert table.rows
        assert not table.refused
        assert table.is_scored
        assert "/" in table.campaign  # a repository
