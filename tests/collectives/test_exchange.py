"""Plans from files and to files, from outside: text in, plan out, and what a target can't say."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from benchmarks.design.fuzz import fuzz, seeds_of_every_format
from benchmarks.design.mutants import library_plans
from benchmarks.design.one_sided import group_plan, one_sided_plan, packet_plan, sliced_plan

from busbw.collectives.algorithms import direct_all_gather, ring_all_gather, ring_reduce_scatter
from busbw.collectives.blocks import split_blocks
from busbw.collectives.exchange import TARGETS, read_plan, target_named, write_plan
from busbw.collectives.exchange.busbw_json import read_busbw_json, write_busbw_json
from busbw.collectives.exchange.files import parse_plan
from busbw.collectives.exchange.goal import write_goal
from busbw.collectives.exchange.msccl_xml import lint_text, read_msccl_xml, write_msccl_xml
from busbw.collectives.exchange.mscclpp_json import read_mscclpp_json, write_mscclpp_json
from busbw.collectives.legality import row_in_words, verify_plan
from busbw.collectives.lowering import plan_of
from busbw.collectives.plan import Buffer, ConnectionKind, Op, Plan, RankBuilder, RankPlan, Span, held_plan
from busbw.errors import InputError

# Two GPUs reduce in scratch: made by hand after ROCm/rccl, src/misc/msccl/msccl_parser.cc.
XML = """<!-- a comment -->
<algo name="pairs" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" outofplace="0" minBytes="0" maxBytes="65536">
  <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="1">
    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="1" deps="1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="1" chan="0">
      <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="0" s_chunks="1">
    <tb id="0" send="0" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="s" srcbuf="i" srcoff="1" dstbuf="o" dstoff="1" cnt="1" depid="1" deps="1" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="0" chan="0">
      <step s="0" type="r" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="re" srcbuf="s" srcoff="0" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


def words(rank: RankPlan, block: int) -> list[str]:
    rows = rank.rows(block)
    return [row_in_words(rank, rows, place) for place in range(len(rows)) if rows[place]["op"] != Op.OPERAND]


def xml_plan() -> Plan:
    return read_msccl_xml(XML, "pairs.xml")[0]


def test_steps_become_instructions_and_dependences_become_flags():
    plan, target, losses = read_msccl_xml(XML, "pairs.xml")
    assert (plan.name, plan.collective, plan.chunks, plan.ranks, plan.max_bytes) == ("pairs", "all_reduce", 2, 2, 65536)
    assert target.name == "rccl" and losses == []
    assert words(plan.rank(0), 0) == [
        "SEND input[1] to rank 1",
        "FLAG_WAIT flag of block 1 set 1 times",
        "SEND input[0] to rank 1",
    ]
    assert words(plan.rank(0), 1)[1:3] == ["REDUCE input[0] -> input[0] scratch[0]", "FLAG_SET"]


def test_a_file_of_ours_in_xml_is_not_legal_where_a_dependence_misses():
    """Rank 1's second receive overwrites input[0], which it also sends: block 0 has sent it by then only if messages say so. They do."""
    assert parse_plan(XML.encode(), "pairs.xml").verify().legal
    broken = XML.replace('depid="1" deps="1"', 'depid="-1" deps="-1"')
    assert {one.rule for one in parse_plan(broken.encode(), "x").verify().violations} >= {"race"}


def test_a_wait_for_a_step_without_hasdep_waits_for_the_next_one_that_has():
    later = XML.replace('depid="1" deps="1"', 'depid="1" deps="0"')
    assert read_msccl_xml(later, "x")[0] == xml_plan()
    never = XML.replace('depid="1" deps="1"', 'depid="1" deps="2"')
    assert {one.rule for one in parse_plan(never.encode(), "x").verify().violations} == {"deadlock"}


def test_nops_carry_dependences_of_the_step_behind_them_and_count_as_steps():
    """nop(depid 0), then a step with its own: two waits before one step. The next flagged step has number 2."""
    text = XML.replace(
        '<step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="1" deps="1" hasdep="0"/>',
        '<step s="1" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="1" deps="1" hasdep="0"/>\n'
        '      <step s="2" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="1" deps="1" hasdep="0"/>',
        1,
    )
    plan = read_msccl_xml(text, "x")[0]
    assert words(plan.rank(0), 0)[1:] == ["FLAG_WAIT flag of block 1 set 1 times"] * 2 + ["SEND input[0] to rank 1"]
    assert read_msccl_xml(write_msccl_xml(plan, TARGETS["rccl"])[0], "x")[0] == plan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('coll="allreduce"', 'coll="all"'), "x.xml:2: <algo> coll is 'all'"),
        (('ngpus="2"', 'ngpus="3"'), "there is no gpu 2"),
        (('<gpu id="1"', '<gpu id="7"'), "id is '7'; a number from 0 to 1"),
        (('send="1"', 'send="0"'), "gpu 0 can't be its own peer"),
        (('<step s="1"', '<step s="5"'), "it is step 1 of its block"),
        (('hasdep="0"', ""), "has no attribute hasdep"),
        (('srcoff="1"', 'srcoff="one"'), "srcoff is 'one'"),
        (('type="r"', 'type="rrs"'), "sends, but its block has no send peer"),
        (("<algo name", '<!DOCTYPE a [<!ENTITY b "c">]><algo name'), "a DOCTYPE or entity declaration"),
        (('<tb id="1"', '<tb id="3"'), "block 1 is missing"),
    ],
)
def test_what_both_interpreters_refuse_is_one_clear_error_with_its_line(change, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        read_msccl_xml(XML.replace(*change, 1), "x.xml")


def test_what_no_interpreter_reads_is_counted():
    text = XML.replace('<gpu id="0"', '<gpu id="0" ', 1).replace('proto="Simple"', 'proto="Simple" redop="sum"').replace(
        '    <tb id="0" send="1"', '    <copy i_off="0" o_off="0"/>\n    <tb id="0" send="1"'
    )  # fmt: skip
    kinds = {loss.kind: loss.line for loss in read_msccl_xml(text, "x")[2]}
    assert kinds == {"ignored-attribute": 2, "ignored-element": 4}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("<!-- a", '<?xml version="1.0"?>\n<!-- a'), "x:1: an XML declaration"),
        (("  <gpu", "\t<gpu"), "x:3: a tab"),
        (('proto="Simple" n', 'proto="Simple"\n n'), "x:2: a line break inside a tag"),
        (('proto="Simple" n', 'proto="Simple"  n'), "x:2: two blanks"),
        ((' outofplace="0"', ""), "x:2: <algo> has no outofplace"),
    ],
)
def test_the_interpreters_own_parser_is_no_xml_parser(change, said):
    (violation,) = lint_text(XML.replace(*change, 1), "x", TARGETS["rccl"])
    assert violation.message.startswith(said) and violation.rule == "target-parser"
    assert lint_text(XML, "x", TARGETS["rccl"]) == []


def test_reduce_scatter_is_spelt_in_two_ways():
    plan = plan_of(ring_reduce_scatter().bind(2), in_place=True)
    assert 'coll="reducescatter"' in write_msccl_xml(plan, TARGETS["rccl"])[0]
    assert 'coll="reduce_scatter"' in write_msccl_xml(plan, TARGETS["msccl"])[0]
    with pytest.raises(InputError, match="is refused by rccl"):
        text = write_msccl_xml(plan, TARGETS["msccl"])[0]
        raise InputError("; ".join(str(one) for one in lint_text(text, "x", TARGETS["rccl"])))


def test_a_file_is_read_back_as_the_runtime_for_which_it_was_written():
    """Only RCCL needs outofplace; msccl alone reads nthreads, reduce_scatter and custom (ROCm/rccl, microsoft/msccl, src/.../xml.cc)."""
    for name, plan in library_plans(2):
        for target in ("msccl", "rccl"):
            text, violations = write_msccl_xml(plan, TARGETS[target])
            if not violations:
                assert read_msccl_xml(text, name)[1].name == target, name
    threads = replace(xml_plan(), threads_per_block=256)
    assert read_msccl_xml(write_msccl_xml(threads, TARGETS["msccl"])[0], "x")[1].name == "msccl"


def test_a_plan_nested_too_deep_is_no_plan():
    deep = "<algo>" + "<a>" * 70 + "</a>" * 70 + "</algo>"
    with pytest.raises(InputError, match=r"XML nested deeper than 64. This is no plan; pass the right file"):
        parse_plan(deep.encode(), "deep.xml")


def test_more_blocks_than_a_channel_takes_go_to_further_channels():
    """40 ranks, each sends to all: 39 blocks that send and 39 that receive; a channel takes 32, so at least 3 are needed."""
    plan = plan_of(direct_all_gather().bind(40))
    text, violations = write_msccl_xml(plan, TARGETS["msccl"])
    again = read_msccl_xml(text, "x", "msccl")[0]
    assert violations == [] and verify_plan(again).legal
    for rank in again:
        assert max(Counter(rank.blocks["channel"].tolist()).values()) <= 32


def test_limits_of_a_runtime_are_named():
    """A ring of 40 ranks takes more than 64 steps a block, which msccl holds and RCCL does not."""
    builder = RankBuilder(0, 1, 1)
    block = builder.block()
    for _ in range(65):
        block.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, 0))
    plan = held_plan([builder.build()], name="x", collective="all_reduce", chunks=1)
    (violation,) = write_msccl_xml(plan, TARGETS["rccl"])[1]
    assert str(violation) == "target-limit: rank 0 block 0 has 65 steps; rccl takes 64 at most"
    assert write_msccl_xml(plan, TARGETS["msccl"])[1] == []


def test_what_xml_cannot_say_is_named_and_nothing_is_written():
    with pytest.raises(InputError, match="rccl can't say SIGNAL"):
        write_plan(one_sided_plan(), target_named("rccl"))
    with pytest.raises(InputError, match="no target 'nccl'; there are msccl"):
        target_named("nccl")


def test_more_chunks_than_a_step_takes_become_several_steps():
    builder = RankBuilder(0, 100, 100)
    builder.block().copy(Span(Buffer.INPUT, 0, 100), Span(Buffer.OUTPUT, 0, 100))
    plan = held_plan([builder.build()], name="x", collective="all_reduce", chunks=100)
    again = read_msccl_xml(write_msccl_xml(plan, TARGETS["rccl"])[0], "x")[0]
    assert again.rank(0).instructions["count"].tolist() == [71, 29]
    assert verify_plan(again).legal


@pytest.mark.parametrize("target", ["rccl", "msccl"])
def test_library_plans_survive_xml(target):
    """import(export(x)) is x with its blocks split by peer and its loops written out; only what XML has no word for is refused."""
    tried = 0
    for name, plan in library_plans(3):
        text, violations = write_msccl_xml(plan, TARGETS[target])
        if violations:
            assert {one.rule for one in violations} == {"target-cannot-say"}, name
            continue
        again = read_msccl_xml(text, name, target)[0]
        split = split_blocks(plan)
        written = replace(plan, rank_plan=lambda rank, split=split: split.rank(rank).unrolled())
        again_whole = replace(again, max_bytes=written.max_bytes)
        if all((rank.instructions["op"] != Op.REDUCE).all() for rank in written):  # a REDUCE may become several steps
            assert again_whole == written, name
        assert verify_plan(again).legal, name
        tried += 1
    assert tried > 60


@pytest.mark.parametrize(
    "plan", [one_sided_plan(3), packet_plan(), group_plan(), sliced_plan()], ids=lambda plan: plan.name
)
def test_plans_of_mscclpp_survive_their_json(plan):
    text, violations = write_mscclpp_json(plan, TARGETS["mscclpp-0.10"])
    assert violations == []
    again, target, losses = read_mscclpp_json(text, "x")
    assert again == plan and losses == [] and target.name == "mscclpp-0.8"
    assert write_plan(plan, TARGETS["mscclpp-0.10"]) == text


def test_plans_of_the_first_kind_survive_their_json_and_what_it_lacks_is_named():
    text, violations = write_mscclpp_json(packet_plan(), TARGETS["mscclpp-0.7"])
    assert violations == [] and "inputChunks" in text
    assert read_mscclpp_json(text, "x")[0] == packet_plan()
    said = {one.message for one in write_mscclpp_json(sliced_plan(), TARGETS["mscclpp-0.7"])[1]}
    assert "mscclpp-0.7 can't say SLICES (rank 0: SLICES of 65536 bytes of 1 chunks over 4 rows)" in said


def json_plan(**operation: object) -> dict:
    """One operation between a handshake and its end, at both of two ranks."""

    def gpu(rank: int) -> dict:
        memory = {"channel_type": "memory", "channel_ids": [0]}
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]
        return {
            "id": rank, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 2,
            "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}],
            "remote_buffers": [{"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}],
            "threadblocks": [{"id": 0, "ops": [operation], "channels": [memory], "remote_buffer_refs": refs}],
        }  # fmt: skip

    return {"name": "x", "collective": "custom", "protocol": "Simple", "inplace": False, "gpus": [gpu(0), gpu(1)]}


LOCAL_1 = {"type": "i", "index": 1, "size": 1}
REMOTE_0 = {"buffer_id": 0, "index": 0, "size": 1}


@pytest.mark.parametrize(
    ("operation", "loss", "told"),
    [
        # get: the source's index on the local side (microsoft/mscclpp 1f5f065d, execution_kernel.hpp, handleGet)
        ({"name": "get", "src_buff": [REMOTE_0], "dst_buff": [LOCAL_1], "channel_type": "memory"}, "get-offsets", "GET scratch[1] -> input[0] with rank 1"),
        ({"name": "flush", "channel_ids": [0], "channel_type": "memory"}, "flush-does-nothing", None),
        ({"name": "pws", "src_buff": [LOCAL_1], "dst_buff": [REMOTE_0], "channel_type": "memory"}, "signal-left-out", "PUT input[1] -> scratch[0] with rank 1"),
        ({"name": "put", "src_buff": [LOCAL_1, {"type": "o", "index": 0, "size": 1}], "dst_buff": [REMOTE_0, {**REMOTE_0, "index": 1}], "channel_type": "memory"}, "mixed-sources", "PUT input[1] -> scratch[0] with rank 1 input[0] -> scratch[1] with rank 1"),
        ({"name": "re", "src_buff": [LOCAL_1, LOCAL_1], "dst_buff": [LOCAL_1], "reduce_op": "max"}, "reduce-op-ignored", "REDUCE input[1] -> input[1] input[1]"),
    ],
)  # fmt: skip
def test_the_plan_holds_what_the_executor_does_and_says_where_that_differs(operation, loss, told):
    plan, _, losses = read_mscclpp_json(json.dumps(json_plan(**operation)), "x")
    assert [one.kind for one in losses] == [loss]
    assert words(plan.rank(0), 0) == ([told] if told else [])


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        ({"name": "glre"}, r"gpus\[0\].threadblocks\[0\].ops\[0\] has name 'glre', which no release's executor knows"),
        ({"name": "copy", "src_buff": [LOCAL_1], "dst_buff": []}, "has 1 sources and 0 targets"),
        (
            {"name": "rre", "src_buff": [LOCAL_1, REMOTE_0], "dst_buff": [LOCAL_1]},
            "names a remote buffer, but its operation has no channel_type",
        ),
        (
            {"name": "signal", "channel_ids": [1], "channel_type": "memory"},
            "names memory channel 1 of its block, which has 1",
        ),
        ({"name": "sem_acquire", "semaphore_ids": [0]}, "names semaphore 0; the gpu has 0"),
        ({"name": "copy", "src_buff": [{**LOCAL_1, "index": -1}], "dst_buff": [LOCAL_1]}, "has index -1"),
    ],
)
def test_what_the_executor_refuses_or_reads_outside_of_its_tables_is_one_clear_error(operation, said):
    with pytest.raises(InputError, match=said):
        read_mscclpp_json(json.dumps(json_plan(**operation)), "x")


def test_traps_of_the_executor_are_not_exported():
    """get from one index to another, flush, pws on memory channels."""
    builder = RankBuilder(0, 2, 2)
    far, port = builder.connect(ConnectionKind.MAPPED, 1), builder.connect(ConnectionKind.PORT, 1)
    block = builder.block()
    block.get(Span(Buffer.INPUT, 0), far, Span(Buffer.INPUT, 1))
    block.flush(port)
    block.put(Span(Buffer.INPUT, 0), far, Span(Buffer.INPUT, 1), Op.PUT_SIGNAL)
    plan = held_plan(
        [builder.build(), RankBuilder(1, 2, 2).build()], name="x", collective="custom", chunks=2, blocks_in_order=False
    )
    said = " ".join(one.message for one in write_mscclpp_json(plan, TARGETS["mscclpp-0.10"])[1])
    assert "a GET from one index to another" in said and "FLUSH: its executor's flush does nothing" in said
    assert "PUT_SIGNAL on memory channels" in said


def test_every_library_plan_survives_our_own_json():
    for _, plan in library_plans(3):
        assert read_busbw_json(write_busbw_json(plan), "x") == plan


def test_loops_stay_loops_in_our_own_json():
    text = write_busbw_json(plan_of(ring_all_gather().bind(8)))
    assert '"op": "loop"' in text and '"wrap": 8' in text
    assert read_busbw_json(text, "x").rank(3).operations < 12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"schema": 1', '"schema": 2'), "this version reads 1"),
        (('"collective": "all_gather"', '"collective": "dance"'), "has collective 'dance'"),
        (('"op": "put"', '"op": "shove"'), r"rank_plans\[0\].blocks\[0\].instructions\[3\] has op 'shove'"),
        (('"via": 0', '"via": 77'), "has via 77; a whole number from 0 to 2"),
    ],
)
def test_our_own_json_is_checked_field_by_field(change, said):
    text = write_busbw_json(one_sided_plan())
    assert change[0] in text
    with pytest.raises(InputError, match=said):
        read_busbw_json(text.replace(*change, 1), "x")


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"{}", b"[1, 2]", b"[" * 100_000, b"<algo/>", b'{"gpus": [], "collective": 3}', b"\xff\xfe<"],
)
def test_what_is_no_plan_is_one_clear_error(data):
    with pytest.raises(InputError):
        parse_plan(data, "x")


def test_a_file_that_is_not_there_or_for_another_runtime_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_plan(tmp_path / "none.xml")
    (tmp_path / "pairs.xml").write_text(XML)
    assert read_plan(tmp_path / "pairs.xml").plan == xml_plan()
    with pytest.raises(InputError, match=r"is msccl-xml, which mscclpp-0\.10 does not read"):
        read_plan(tmp_path / "pairs.xml", "mscclpp-0.10")


def test_damaged_files_end_in_a_plan_or_one_clear_error(tmp_path):
    """A sample; `python -m benchmarks design --only D11` changes more, and gives them to the command line, too."""
    assert fuzz(seeds_of_every_format(), range(150), 7, tmp_path) == []


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("chunks", 1 << 40, "too much to be followed"),
        ("count", 1 << 33, "too many to write out"),
        ("count", ["ceil_log", 1, "|r|"], "a logarithm to base 1 has no value"),
        ("count", ["pow", 2, ["pow", 2, 40]], "has no value"),
        ("ranks", 1 << 31, "plans are made for up to 16,384"),
    ],
)
def test_a_schedule_of_any_size_is_refused_before_it_takes_all_memory(field, value, reason):
    """A file of 200 bytes can ask for a loop of 2^33 turns, 2^40 chunks, or a logarithm to base 1, which has no end."""
    schedule = {
        "schema": 1, "name": "large", "kind": "broadcast", "axes": ["r"], "chunks": value if field == "chunks" else 1,
        "body": {"for": "t", "count": value if field == "count" else 1, "do": {"move": [[0], [1]], "from": ["data", 0]}},
        "fixed": {"r": value if field == "ranks" else 2},
    }  # fmt: skip
    data = json.dumps(schedule).encode()

    def checked() -> None:
        read = parse_plan(data, "large.json")
        read.verify_schedule()
        read.verify()

    with pytest.raises(InputError, match=reason):
        checked()


def test_goal_says_sends_receives_and_what_waits_for_what():
    """GOAL as in spcl/LogGOPSim: a block's lines follow one another, a flag joins two blocks."""
    lines, violations = write_goal(xml_plan(), 8192)
    text = list(lines)
    assert violations == []
    assert text[:6] == [
        "num_ranks 2",
        "rank 0 {",
        "l1: send 4096b to 1 tag 0 cpu 0",
        "l2: calc 0 cpu 0",
        "l2 requires l1",
        "l3: send 4096b to 1 tag 0 cpu 0",
    ]
    assert "l2 requires l6" in text  # the wait for the flag, which is set behind l5, the reduction
    with pytest.raises(InputError, match="pass a multiple"):
        write_goal(xml_plan(), 4095)
    assert [str(one) for one in write_goal(packet_plan(), 8192)[1]] == [
        f"target-cannot-say: GOAL can't say {op}" for op in ("UNPACK", "PUT_PACKETS", "REDUCE_PACKETS")
    ]
