"""What ucx_perftest prints. MB/s is 2^20 bytes/s; recorded files are runs of 1.13.1 over shared memory unless said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.ucx_perftest import READER

from .reading import DATA, FIXTURES, columns, read_text

NAMES = ("size_bytes", "time_ns", "algbw_bytes_per_s", "iterations", "line")


def recorded(name: str) -> str:
    return (DATA / name).read_text()


def test_the_final_row_of_a_latency_test():
    """Overall: 2.289 us and 3.33 MB/s."""
    found = read_text(READER, recorded("ucx-tag_lat_pinned.txt"))
    assert columns(found.measurements, *NAMES) == [(None, 2289, 3.33 * 2**20, 200000, 6)]
    assert columns(found.measurements, "tool", "ranks", "table_index") == [("ucx_perftest", 2, 0)]


def test_progress_rows_are_no_measurements():
    found = read_text(READER, recorded("ucx-tag_lat_v.txt"))
    assert columns(found.measurements, *NAMES) == [(None, 232412, 0.03 * 2**20, 20000, 15)]
    assert found.loss_counts == {"size-unknown": 1}


@pytest.mark.parametrize(
    ("name", "rate"), [("ucx-tag_bw.txt", 155.97), ("ucx-tag_bw_f.txt", 204.13), ("ucx-tag_bw_fv.txt", 323.32)]
)
def test_an_overhead_is_no_time_of_a_message(name: str, rate: float):
    found = read_text(READER, recorded(name))
    assert columns(found.measurements, "time_ns", "algbw_bytes_per_s", "iterations") == [(None, rate * 2**20, 4000)]


def test_size_and_test_come_from_the_command_line():
    found = read_text(READER, "$ ucx_perftest host0 -t tag_lat -s 8 -n 200000\n" + recorded("ucx-tag_lat_pinned.txt"))
    assert columns(found.measurements, "size_bytes", "collective", "time_ns") == [(8, "send_recv", 2289)]


def test_size_and_test_come_from_the_box_of_the_server():
    box = "| Test:         tag match latency                 |\n| Message size: 8                       |\n"
    found = read_text(READER, box + recorded("ucx-tag_lat_pinned.txt"))
    assert columns(found.measurements, "size_bytes", "collective") == [(8, "send_recv")]


def test_comma_separated_latency_needs_the_command():
    text = recorded("ucx-tag_bw_fv.txt")
    found = read_text(READER, "ucx_perftest host0 -t tag_lat -s 8 -f -v\n" + text)
    assert columns(found.measurements, "time_ns", "size_bytes") == [(193306, 8)]


def test_an_old_box_calls_everything_latency():
    """Source: rapidsai/ucx-py#370, tag_bw of UCX 1.6: 1935.580 us is no latency; 492.71 MB/s."""
    found = read_text(READER, recorded("ucx-perftest-1.6.txt"))
    assert columns(found.measurements, "size_bytes", "time_ns", "algbw_bytes_per_s", "collective") == [
        (1000000, None, 492.71 * 2**20, "send_recv")
    ]


def test_labels_of_a_batch_stand_where_final_stood():
    row = recorded("ucx-tag_lat_pinned.txt").splitlines()[-1]
    box = "\n".join(recorded("ucx-tag_lat_pinned.txt").splitlines()[:-1])
    found = read_text(READER, f"{box}\n{row.replace('Final:', 'small:')}\n{row.replace('Final:', 'large:')}\n")
    assert columns(found.measurements, "time_ns", "table_index") == [(2289, 0), (2289, 0)]
    csv = recorded("ucx-tag_bw_fv.txt").splitlines()
    found = read_text(READER, f"batch,{csv[0]}\nsmall,{csv[1]}\nlarge,{csv[1]}\n")
    assert columns(found.measurements, "algbw_bytes_per_s") == [(323.32 * 2**20,), (323.32 * 2**20,)]


def test_a_box_without_results_gives_nothing():
    """A batch that failed: errors of UCX stand under the header."""
    found = read_text(READER, recorded("ucx-batch.txt"))
    assert found.measurements == []
    assert found.losses == []


def test_rows_of_a_cut_file_are_the_first_rows_of_the_whole():
    text = recorded("ucx-tag_lat_pinned.txt")
    whole = columns(read_text(READER, text).measurements, *NAMES)
    losses = set()
    for end in range(len(text)):
        found = read_text(READER, text[:end])
        losses.update(found.loss_counts)
        part = columns(found.measurements, *NAMES)
        assert part == whole[: len(part)]
    assert losses == {"truncated-row", "size-unknown"}


def fixture(name: str) -> str:
    return (FIXTURES / "ucx_perftest" / name).read_text()


def test_with_several_threads_only_the_whole_run_has_figures():
    """-T 2: iterations, then 5.179 us, 2.95 MB/s and a message rate stand under `overall`; the columns of averages are blank."""
    found = read_text(READER, fixture("threads.txt"))
    assert columns(found.measurements, "time_ns", "algbw_bytes_per_s", "iterations") == [(5179, 2.95 * 2**20, 2000)]


def test_labels_of_a_batch_need_the_batch_file():
    """The box says overhead though `small` is a latency test (24.979 us): without the file its time is unknown, and that is counted."""
    alone = read_text(READER, fixture("batch.txt"))
    assert columns(alone.measurements, "size_bytes", "time_ns") == [(None, None), (None, None)]
    assert alone.loss_counts == {"test-unknown": 2, "size-unknown": 2}
    found = read_text(READER, fixture("batch_with_file.txt"))
    assert columns(found.measurements, "size_bytes", "time_ns", "algbw_bytes_per_s") == [
        (8, 24979, 0.31 * 2**20),
        (65536, None, 14740.44 * 2**20),
    ]
    assert found.losses == []


def test_a_padded_count_of_a_comma_separated_batch_is_read():
    """`large, 500,...`: the count is padded to four characters."""
    found = read_text(READER, fixture("batch_v.txt"))
    assert columns(found.measurements, "iterations", "algbw_bytes_per_s") == [
        (2000, 11.76 * 2**20),
        (500, 15555.66 * 2**20),
    ]


@pytest.mark.parametrize(
    ("name", "time_ns"), [("get.txt", 94), ("fadd.txt", 72), ("put_bw.txt", None), ("am_lat_R.txt", 550)]
)
def test_the_box_says_what_its_third_group_is(name: str, time_ns: int | None):
    """get and fadd have no lat in their names, but a latency under their box; a put_bw has an overhead."""
    assert columns(read_text(READER, fixture(name)).measurements, "time_ns") == [(time_ns,)]


def test_the_box_of_the_server_in_the_same_text_gives_size_and_test():
    found = read_text(READER, fixture("tag_lat_both_ends.txt"))
    assert columns(found.measurements, "size_bytes", "collective", "time_ns") == [(8, "send_recv", 99436)]
    assert found.losses == []


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_mutation_raises(data: st.DataObject):
    text = bytearray(
        "".join(recorded(n) for n in ("ucx-tag_lat_v.txt", "ucx-tag_bw_fv.txt", "ucx-perftest-1.6.txt")).encode()
    )
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text) - 1))
        put = data.draw(st.binary(max_size=6) | st.sampled_from([b"\n", b"9" * 30, b"nan", b"|"]))
        text[at : at + data.draw(st.integers(0, 4))] = put
    read_text(READER, bytes(text))
