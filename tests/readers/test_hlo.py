"""XLA's HLO text. step.txt is recorded: jax 0.10.2 on 8 CPU devices, mesh dp 2 x tp 4; a scan of three layers (all-gather, product, reduce-scatter over tp, ppermute over dp), then an
all-to-all over tp, a sum over both axes and one over dp. The compiler made float32 of bfloat16 and dropped what was not used. Other forms: hlo_parser.cc of XLA, its tests."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.readers.hlo import READER, device_groups

from .damage import fixture, mutations
from .reading import columns, read_text

STEP = fixture("hlo/step.txt")


def module(*lines: str, devices: str = "num_partitions=8", before: str = "") -> str:
    return (
        f"HloModule m, is_scheduled=true, {devices}\n\n{before}ENTRY %main (p: f32[8]) -> f32[8] {{\n"
        + "".join(f"  {line}\n" for line in lines)
        + "}\n"
    )


def test_a_recorded_dump_has_the_collectives_of_its_program():
    """Rank 8 x 32 of 64 x 32 each: gathered over four 32 x 32 float32 are 4 KiB, as is what is reduced and scattered; permuted and reduced 8 x 32, 1 KiB."""
    found = read_text(READER, STEP)
    tp, dp = [0, 1, 2, 3], [0, 4]
    assert columns(found.collectives, "op", "size_bytes", "ranks", "members", "group_desc") == [
        ("all_gather", 4096, 4, tp, "2 groups of 4"), ("reduce_scatter", 4096, 4, tp, "2 groups of 4"), ("send_recv", 1024, 8, list(range(8)), "1 group of 8"),
        ("all_reduce", 1024, 2, dp, "4 groups of 2"), ("all_to_all", 1024, 4, tp, "2 groups of 4"), ("all_reduce", 4, 8, list(range(8)), "1 group of 8"),
    ]  # fmt: skip
    assert STEP.splitlines()[found.collectives[0]["line"] - 1].strip().startswith("%all_gather.5 = ")
    assert not found.losses


GLOBAL = ", use_global_device_ids=true"


@pytest.mark.parametrize(("written", "replicas", "partitions", "groups"), [
    ("channel_id=1, replica_groups={{0,1},{2,3}}" + GLOBAL, 1, 4, ((0, 1), (2, 3))),
    ("channel_id=1, replica_groups=[2,4]<=[8]" + GLOBAL, 1, 8, ((0, 1, 2, 3), (4, 5, 6, 7))),
    ("channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0)" + GLOBAL, 1, 8, ((0, 4), (1, 5), (2, 6), (3, 7))),
    ("channel_id=1, replica_groups=[2,4]<=[2,2,2]T(1,0,2)" + GLOBAL, 1, 8, ((0, 1, 4, 5), (2, 3, 6, 7))),
    ("channel_id=1, replica_groups=mesh['a'=2,'b'=1,'c'=4] {'a'}" + GLOBAL, 1, 8, ((0, 4), (1, 5), (2, 6), (3, 7))),
    ("channel_id=1, replica_groups=mesh['a'=2,'b'=3] {'b'}" + GLOBAL, 1, 6, ((0, 1, 2), (3, 4, 5))),
    ("replica_groups={}", 1, 4, ((0, 1, 2, 3),)),
    ("channel_id=3, replica_groups={{0}}", 1, 4, ((0, 1, 2, 3),)),
    ("channel_id=3, replica_groups={{0,1}}", 2, 2, ((0, 1, 2, 3),)),
    ("replica_groups={{0,1}}", 2, 3, ((0, 3), (1, 4), (2, 5))),
    ("replica_groups={{0,1},{2,3}}", 4, 1, ((0, 1), (2, 3))),
    ("channel_id=1, replica_groups={{0,9}}" + GLOBAL, 1, 8, None),
    ("channel_id=1, replica_groups=[3,2]<=[8]" + GLOBAL, 1, 8, None),
    ("channel_id=1, replica_groups=[2,4]<=[8]T(1)" + GLOBAL, 1, 8, None),
    ("channel_id=1, replica_groups=mesh['a'=2] {'z'}" + GLOBAL, 1, 8, None),
    ("channel_id=1, replica_groups={{0,0}}" + GLOBAL, 1, 8, None),
])  # fmt: skip
def test_groups_in_every_form_and_what_their_numbers_mean(written: str, replicas: int, partitions: int, groups: object):
    """Of a module of several replicas and partitions: with a channel and no global numbers a group takes all partitions of its replicas in; without a channel it stands once for each partition."""
    assert device_groups(written, replicas, partitions) == groups


IN_PAIRS = "channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true"


@pytest.mark.parametrize(("line", "op", "size_bytes", "dtype"), [
    (f"%a = f32[8,16]{{1,0:T(8,128)S(5)}} all-reduce(%p), {IN_PAIRS}, to_apply=%add", "all_reduce", 512, "float"),
    (f"%a = (bf16[8]{{0}}, f32[4]{{0}}, /*index=2*/f32[]) all-reduce(%p, %q, %r), {IN_PAIRS}, to_apply=%add", "all_reduce", 36, "bfloat16"),
    (f"%a = (f32[8], f32[4]) all-reduce-start(%p, %q), {IN_PAIRS}, to_apply=%add", "all_reduce", 48, "float"),
    (f"%a = (bf16[4,8]{{1,0}}, bf16[8,8]{{1,0}}) all-gather-start(%p), {IN_PAIRS}, dimensions={{0}}", "all_gather", 128, "bfloat16"),
    (f"%a = ((bf16[4], bf16[2]), (bf16[8], bf16[4])) all-gather-start(%p, %q), {IN_PAIRS}, dimensions={{0}}", "all_gather", 24, "bfloat16"),
    (f"%a = f32[4]{{0}} reduce-scatter(%p), {IN_PAIRS}, dimensions={{0}}, to_apply=%add", "reduce_scatter", 32, "float"),
    (f"%a = ((f32[8]), f32[4], u32[]) reduce-scatter-start(%p), {IN_PAIRS}, dimensions={{0}}", "reduce_scatter", 32, "float"),
    ("%a = (f32[4], f32[4], u32[], u32[]) collective-permute-start(%p), channel_id=1, source_target_pairs={{0,1},{1,0}}", "send_recv", 16, "float"),
    (f"%a = f8e4m3fn[10]{{0}} collective-broadcast(%p), {IN_PAIRS}", "broadcast", 10, "f8e4m3"),
    (f"%a = s4[7]{{0}} all-to-all(%p), {IN_PAIRS}, dimensions={{0}}", "all_to_all", 4, "s4"),
    (f"ROOT a = pred[3] all-reduce(p), {IN_PAIRS}, to_apply=add", "all_reduce", 3, "uint8"),
])  # fmt: skip
def test_bytes_follow_from_shapes(line: str, op: str, size_bytes: int, dtype: str):
    found = read_text(READER, module("%p = f32[8] parameter(0)", line))
    assert columns(found.collectives, "op", "size_bytes", "dtype") == [(op, size_bytes, dtype)]
    assert not found.losses


def test_what_ends_an_asynchronous_collective_is_no_collective():
    lines = (f"%s = f32[8] all-reduce-start(%p), {IN_PAIRS}, to_apply=%add", "ROOT %d = f32[8] all-reduce-done(%s)")
    assert len(read_text(READER, module(*lines)).collectives) == 1


def test_an_instruction_may_be_broken_after_commas():
    text = module(f"%a = f32[8] all-reduce(%p),\n    {IN_PAIRS},\n    to_apply=%add")
    assert columns(read_text(READER, text).collectives, "size_bytes", "line") == [(32, 4)]


def test_groups_that_the_module_cannot_have_are_counted():
    found = read_text(READER, module(f"%a = f32[8] all-reduce(%p), {IN_PAIRS}", devices="num_partitions=4"))
    assert found.loss_counts == {"unknown-groups": 1}
    assert "size_bytes" not in found.collectives[0]


def test_a_dump_that_is_cut_keeps_what_stands_before():
    found = read_text(READER, STEP[: STEP.index("ENTRY")])
    assert len(found.collectives) == 3
    assert found.loss_counts == {"truncated-file": 1}


@pytest.mark.parametrize("head", ["HloModule m\n", "// a comment\nHloModule jit_f, x=1\n", "\n HloModule m, a"])
def test_a_module_is_known_by_its_first_word(head: str):
    assert READER.sniff(head.encode())


@settings(max_examples=60)
@given(mutations([STEP]))
def test_no_damage_makes_the_reader_fail(text: bytes):
    read_text(READER, text)


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(
            [
                "(",
                ")",
                "{",
                "}",
                "%a",
                " = ",
                "f32[",
                "8",
                "]",
                ",",
                "all-reduce(",
                "\n",
                "while(",
                "ENTRY",
                "body=",
                "replica_groups=",
            ]
        ),
        max_size=60,
    )
)
def test_no_text_of_its_words_makes_the_reader_fail(words: list[str]):
    read_text(READER, "HloModule m, num_partitions=4\n%c {\n" + "".join(words))


@pytest.mark.parametrize("line", [
    "%a = f32[" + "9" * 5000 + f"] all-reduce(%p), {IN_PAIRS}", f"%a = f32[8] all-reduce(%p), channel_id=1, replica_groups=[0,4]<=[0,999999999]{GLOBAL}",
    "%c (" + ") -> (" * 50_000 + " {", f"%a = f32[8] all-reduce(%p), channel_id=1, replica_groups={{{'{0,1},' * 50_000}{GLOBAL}", "%a = " + "(" * 50_000,
    "%a = f32[8] all-reduce(%p), channel_id=1, replica_groups=[,]<=[,]", "%a = f32[8] all-reduce(%p), channel_id=1, replica_groups=[1,1]<=[,]",
], ids=range(7))  # fmt: skip
def test_hostile_numbers_and_brackets_are_data(line: str):
    found = read_text(READER, module("%p = f32[8] parameter(0)", line))
    assert not any("size_bytes" in row for row in found.collectives)


def test_lines_that_all_go_on_are_read_in_time_that_grows_with_them():
    """60,000 lines that end with a comma: joined again at each line they would be 36 GB to copy."""
    found = read_text(
        READER,
        module(
            *["%c = f32[8] add(,"] * 60_000, "%b = f32[8] copy(%p)", "%a = f32[8] all-reduce(%p), replica_groups={}"
        ),
    )
    assert columns(found.collectives, "op") == [("all_reduce",)]


def test_a_type_that_is_not_known_has_no_size():
    found = read_text(
        READER,
        module(
            "%a = q7[1024] all-reduce(%p), replica_groups={}",
            "%b = (q7[1024], f32[8]) all-reduce(%p), replica_groups={}",
        ),
    )
    assert columns(found.collectives, "size_bytes") == [(None,), (None,)]


def test_of_several_modules_in_a_file_the_first_is_read_and_the_others_are_told():
    """Dumps run together by cat: the second has other devices, and computations of the same names."""
    one, other = (
        module("%a = f32[8] all-reduce(%p), replica_groups={}", devices=f"num_partitions={n}") for n in (8, 4)
    )
    found = read_text(READER, one + other + other)
    assert columns(found.collectives, "ranks") == [(8,)]
    (loss,) = found.losses
    assert (loss.kind, loss.line) == ("several-modules", one.count("\n") + 1)
