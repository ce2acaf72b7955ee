"""mlxlink: state, speed, bit error rates. Sources of the texts: fixtures/README.md."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from busbw.readers.mlxlink import READER

from .damage import contents, cuts, fixture, interleaved, mutations
from .reading import columns, read_text

GBIT = 1e9 / 8
TEXT = fixture("rdma/mlxlink_public.txt")


def test_public_report():
    """HDR on two lanes is 100 Gb/s, and no more is possible on two; the second port runs at half of what it and its cable can do."""
    found = read_text(READER, TEXT)
    assert columns(
        found.ports,
        "host",
        "device",
        "state",
        "physical_state",
        "link_layer",
        "width",
        "rate_bytes_per_s",
        "possible_rate_bytes_per_s",
    ) == [
        (
            "node5",
            "mt4123_pciconf0",
            "active",
            "link_up",
            "InfiniBand",
            2,
            pytest.approx(2 * 50 * GBIT),
            pytest.approx(2 * 50 * GBIT),
        ),
        (
            "node5",
            "mt4123_pciconf1",
            "active",
            "link_up",
            "Ethernet",
            2,
            pytest.approx(50 * GBIT),
            pytest.approx(100 * GBIT),
        ),
    ]
    figures = {(row["name"], dict(row.get("labels", ())).get("lane")): row["value"] for row in found.counters}
    assert figures == {
        ("time_since_last_clear_min", None): 348349.5,
        ("symbol_errors", None): 0,
        ("symbol_ber", None): 15e-255,
        ("effective_physical_errors", None): 0,
        ("effective_physical_ber", None): 15e-255,
        ("raw_physical_errors", "0"): 3183333,
        ("raw_physical_errors", "1"): 242074,
        ("link_down_counter", None): 0,
        ("link_error_recovery_counter", None): 0,
        ("raw_physical_ber", None): 1e-8,
    }
    assert found.losses == []


def test_figures_that_grep_picked_out_belong_to_the_device_of_the_loop():
    """Source: the same report, `mlxlink -d ... -c | grep -i ber` below a line for each device."""
    text = "".join(
        f"========== mlx5_{i} FEC Counters ==========\nEffective Physical Errors       : {i}\nRaw Physical BER                : {i}E-8\n"
        for i in range(3)
    )
    found = read_text(READER, text)
    assert columns(found.counters, "device", "name", "value") == [
        entry
        for i in range(3)
        for entry in (
            (f"mlx5_{i}", "effective_physical_errors", i),
            (f"mlx5_{i}", "raw_physical_ber", pytest.approx(i * 1e-8)),
        )
    ]
    assert found.ports == []


def test_the_command_names_the_device():
    text = "root@node1:~# mlxlink -d mlx5_3 -c\n" + TEXT.split("==========\n", 1)[1].split("=====")[0]
    found = read_text(READER, text)
    assert {(row["host"], row["device"]) for row in (*found.ports, *found.counters)} == {("node1", "mlx5_3")}


def test_a_port_that_is_down():
    """mlxlink prints N/A for what a port without a link does not have; that is no damage."""
    text = "Operational Info\n----------------\nState      : Disable\nPhysical state : Polling\nSpeed : N/A\nWidth : N/A\nRaw Physical BER : N/A\n"
    found = read_text(READER, text)
    assert columns(found.ports, "state", "physical_state", "width", "rate_bytes_per_s") == [
        ("down", "polling", None, None)
    ]
    assert (found.counters, found.losses) == ([], [])


@pytest.mark.parametrize(
    "text", ["State : Active\nSpeed : 100G\n", "Speed            : fast\nWidth : 2x\n", "Operational Info\n"]
)
def test_other_texts_are_left_alone(text: str):
    found = read_text(READER, text)
    assert (found.tables, found.losses) == ({}, [])


@pytest.mark.parametrize(
    "key", ["Symbol Errors", "Symbol BER", "Effective Physical Errors", "Raw Physical BER", "Link Down Counter"]
)
def test_a_garbled_figure_is_counted(key: str):
    found = read_text(READER, re.sub(rf"({key}\s+: ).*", r"\1 1x5", TEXT))
    assert len(found.counters) == len(read_text(READER, TEXT).counters) - 1
    assert found.loss_counts == {"damaged-value": 1}


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("State", "unknown-value"),
        ("Physical state", "unknown-value"),
        ("Speed", "damaged-value"),
        ("Width", "damaged-value"),
    ],
)
def test_a_garbled_word_is_unknown_and_counted(key: str, kind: str):
    found = read_text(READER, re.sub(rf"^({key}\s+: ).*", r"\1 @@@", TEXT, count=1, flags=re.M))
    assert len(found.ports) == 2
    assert kind in found.loss_counts


def test_windows_line_ends_change_nothing():
    assert contents(read_text(READER, TEXT.replace("\n", "\r\n"))) == contents(read_text(READER, TEXT))


def test_other_lines_in_between_change_nothing():
    assert contents(read_text(READER, interleaved(TEXT))) == contents(read_text(READER, TEXT))


def test_a_cut_output_gives_the_first_rows_of_the_whole():
    whole = read_text(READER, TEXT)
    for text in cuts(TEXT):
        part = read_text(READER, text)
        assert (
            columns(part.counters, "device", "name", "value")
            == columns(whole.counters, "device", "name", "value")[: len(part.counters)]
        )
        assert columns(part.ports, "device") == columns(whole.ports, "device")[: len(part.ports)]
        assert part.losses == []


@settings(max_examples=150, deadline=None)
@given(data=mutations([TEXT]))
def test_no_mutation_raises(data: bytes):
    read_text(READER, data)
