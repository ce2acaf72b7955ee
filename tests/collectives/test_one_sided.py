"""Sends and receives as puts, signals and waits: the same results, legal as the executors read them, and read back as they were written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.design.mutants import library_plans
from tests.collectives.plan_runner import check_plan

from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.exchange import TARGETS, read_plan, write_plan
from busbw.collectives.exchange.msccl_xml import read_msccl_xml, write_msccl_xml
from busbw.collectives.exchange.mscclpp_json import read_mscclpp_json
from busbw.collectives.exchange.writing import fitted
from busbw.collectives.legality import verify_plan
from busbw.collectives.lowering import plan_of
from busbw.collectives.one_sided import BlockLimits, TooManyBlocksError, one_sided
from busbw.collectives.plan import Buffer, ConnectionKind, Op, Plan, RankBuilder, Span, held_plan
from busbw.errors import InputError

NO_WORD = {"dissemination_barrier": "has no data", "nvls_reduce_scatter": "glre"}
"""Library schedules that no release says at three ranks, and why."""


def library_plan(name: str, *shape: int, in_place: bool = False) -> Plan:
    plan = plan_of(LIBRARY[name]().bind(*shape), in_place=in_place)
    held = list(plan)
    return replace(plan, rank_plan=held.__getitem__)


def operations(plan: Plan, rank: int, block: int = 0) -> list[str]:
    rows = plan.rank(rank).rows(block)
    return [Op(int(op)).name for op in rows["op"] if op != Op.OPERAND]


def test_every_library_plan_survives_mscclpp_json():
    """import(export(x)) == x on plans, and what is read back does what the collective promises, as the executor runs it (`write_plan`)."""
    written = 0
    for name, plan in library_plans(3):
        if why := NO_WORD.get(name.split()[0]):
            with pytest.raises(InputError, match=why):
                write_plan(plan, TARGETS["mscclpp-0.10"])
            continue
        text = write_plan(plan, TARGETS["mscclpp-0.10"])
        assert read_mscclpp_json(text, name)[0] == fitted(plan, TARGETS["mscclpp-0.10"]), name
        written += 1
    assert written > 70


@pytest.mark.parametrize(
    ("name", "shape"),
    [("ring_all_reduce", (8,)), ("two_shot_all_reduce", (8,)), ("recursive_doubling_all_gather", (8,)), ("binomial_broadcast", (5,)), ("hierarchical_all_reduce", (2, 4)), ("direct_all_to_all", (7,))],
)  # fmt: skip
def test_plans_of_the_first_kind_hold_library_schedules_too(name, shape):
    """Release 0.7 has no semaphores: blocks meet at barriers; and each way between two buffers is a channel."""
    plan = library_plan(name, *shape)
    text = write_plan(plan, TARGETS["mscclpp-0.7"])
    assert read_mscclpp_json(text, name)[0] == fitted(plan, TARGETS["mscclpp-0.7"])


@pytest.mark.parametrize(
    "name", ["ring_all_reduce", "direct_all_gather", "recursive_doubling_all_reduce", "binomial_reduce"]
)
@pytest.mark.parametrize("ranks_per_node", [None, 2])
def test_puts_do_what_sends_did(name, ranks_per_node):
    """On numbers, by a runner of its own."""
    check_plan(one_sided(library_plan(name, 4), ranks_per_node))


def test_a_step_of_a_ring_takes_five_operations():
    """wait, SYNC, put, SYNC, signal (the reason why one block of 64 operations can't hold a ring of many ranks)."""
    plan = one_sided(library_plan("ring_all_gather", 4, in_place=True))
    assert operations(plan, 0) == [
        "SIGNAL", "WAIT", "SYNC",  # who puts here may do so; who is put into has entered
        "PUT", "SYNC", "SIGNAL", *["WAIT", "SYNC", "PUT", "SYNC", "SIGNAL"] * 2, "WAIT",
    ]  # fmt: skip


def test_what_is_reduced_and_sent_on_is_one_operation():
    """`res`: a rank of a ring reduce_scatter stores the sum and puts it in one go."""
    plan = one_sided(library_plan("ring_reduce_scatter", 4, in_place=True))
    assert operations(plan, 0).count("PUT") == 1  # its own chunk, which is the first that it sends


def test_all_peers_of_a_step_share_its_operations():
    """8 channels an operation: 7 peers take one signal, one wait and, from one buffer to another, one put."""
    assert operations(one_sided(library_plan("direct_all_gather", 8, in_place=True)), 3) == [
        "SIGNAL", "WAIT", "SYNC", "PUT", "SYNC", "SIGNAL", "WAIT",
    ]  # fmt: skip


def test_what_one_block_cannot_hold_is_done_by_several_in_turn():
    """A ring of 12 ranks needs about 5 x 22 operations a rank; 32 a block leave 24 beside what ties blocks together."""
    ring, small = library_plan("ring_all_reduce", 12), BlockLimits(operations=32)
    plan = one_sided(ring, limits=small)
    rank = plan.rank(0)
    assert len(rank.blocks) >= 110 / 24 and all(
        len(operations(plan, 0, block)) <= 32 for block in range(len(rank.blocks))
    )
    assert len(rank.semaphores) == len(rank.blocks) - 1
    assert verify_plan(plan).legal
    with pytest.raises(TooManyBlocksError, match=r"blocks, and 3 are taken at most\. Take fewer slices"):
        one_sided(ring, limits=replace(small, blocks=3))


def test_ranks_of_other_nodes_are_reached_through_ports():
    plan = one_sided(library_plan("hierarchical_all_reduce", 2, 2), 2)
    for rank in plan:
        for connection in rank.connections:
            other_node = connection["peer"] // 2 != rank.rank // 2
            assert (connection["kind"] == ConnectionKind.PORT) == other_node
    assert verify_plan(plan).legal


def test_a_switch_adds_and_stores_in_one_operation():
    """The executor has no load-reduce without a store; all_reduce by NVLS is one `glres` a rank between two meetings."""
    plan = one_sided(library_plan("nvls_all_reduce", 4))
    assert operations(plan, 1).count("GROUP_REDUCE_MULTICAST") == 1 and "MULTICAST" not in operations(plan, 1)
    assert verify_plan(plan).legal
    write_plan(plan, TARGETS["mscclpp-0.8"])


def test_a_file_of_msccl_becomes_one_of_mscclpp():
    """Receives that send on are a wait, a reduction in place or in scratch, and a put; a flag is a semaphore."""
    ring = library_plan("ring_all_reduce", 4, in_place=True)
    plan = read_msccl_xml(write_msccl_xml(ring, TARGETS["rccl"])[0], "x")[0]
    assert verify_plan(one_sided(plan)).legal
    builders = [RankBuilder(rank, 1, 1) for rank in range(3)]
    for rank, builder in enumerate(builders):  # 0 -> 1 -> 2, who keeps the sum; 1 stores nothing
        block = builder.block()
        if rank == 0:
            block.send(Span(Buffer.INPUT, 0), builder.send_to(1))
        elif rank == 1:
            block.receive_reduce_send(Span(Buffer.INPUT, 0), builder.receive_from(0), builder.send_to(2))
        else:
            block.receive_reduce(Span(Buffer.INPUT, 0), builder.receive_from(1), Span(Buffer.OUTPUT, 0))
    chain = held_plan([builder.build() for builder in builders], name="chain", collective="reduce", chunks=1, root=2)
    assert verify_plan(chain).legal
    made = one_sided(chain)
    assert verify_plan(made).legal and [rank.scratch_chunks for rank in made] == [0, 1, 1]


def test_a_plan_that_does_not_come_to_its_end_is_refused():
    builders = [RankBuilder(rank, 1, 1) for rank in range(2)]
    for rank, builder in enumerate(builders):
        block = builder.block()
        block.receive(builder.receive_from(1 - rank), Span(Buffer.OUTPUT, 0))
        block.send(Span(Buffer.INPUT, 0), builder.send_to(1 - rank))
    plan = held_plan([builder.build() for builder in builders], name="stuck", collective="custom", chunks=1)
    with pytest.raises(InputError, match="waits for ever; `busbw verify` tells for what"):
        one_sided(plan)
    builders[0].block().send(Span(Buffer.INPUT, 0), builders[0].send_to(1, 5))
    odd = held_plan([builder.build() for builder in builders], name="odd", collective="custom", chunks=1)
    with pytest.raises(InputError, match="has one end only"):
        one_sided(odd)


def test_a_reduce_that_is_written_as_custom_is_not_called_wrong(tmp_path):
    """The file does not say which chunks belong together, so no sum in it is wrong; nor does it promise any bits."""
    (tmp_path / "x.json").write_text(write_plan(library_plan("binomial_reduce", 5), TARGETS["mscclpp-0.10"]))
    verdict = read_plan(tmp_path / "x.json").verify()
    assert verdict.violations == () and not verdict.same_bits
    assert verdict.unchecked == ("the result, because custom promises none",)


def test_what_is_written_is_read_from_a_file(tmp_path):
    (tmp_path / "x.json").write_text(write_plan(library_plan("binomial_broadcast", 5), TARGETS["mscclpp-0.10"]))
    again = read_plan(tmp_path / "x.json")
    assert again.verify().legal and again.verify().unchecked == ("the result, because custom promises none",)
