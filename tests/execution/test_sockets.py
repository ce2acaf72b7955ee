"""A plan run over TCP gives numpy's result, whatever the size; what does not fit sockets, or goes wrong on the way, is said."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.design.mutants import library_plans
from benchmarks.design.one_sided import one_sided_plan, sliced_plan
from benchmarks.execute.plans import expected, inputs

from busbw.collectives import plan_of
from busbw.collectives.algorithms import LIBRARY, ring_all_reduce
from busbw.collectives.algorithms.all_to_all_v import direct_all_to_all_v
from busbw.collectives.exchange.files import parse_plan
from busbw.collectives.exchange.msccl_xml import write_msccl_xml
from busbw.collectives.exchange.targets import TARGETS
from busbw.collectives.plan import Buffer, Plan, RankBuilder, Span, held_plan
from busbw.execution import GaveUpError, run
from busbw.execution.socket_run import SocketRank
from busbw.execution.sockets import listen

SAMPLE = [
    "ring_all_reduce", "bruck_all_gather_2_ports", "pat_reduce_scatter", "double_binary_tree_all_reduce", "chain_broadcast", "direct_scatter",
    "pairwise_all_to_all", "hierarchical_all_reduce", "binomial_reduce", "dissemination_barrier",
]  # fmt: skip
"""One of each way to lower that sends and receives."""


def assert_right(plan: Plan, per_rank: int, dtype: str = "float32", **how: object) -> None:
    arrays = inputs(plan, per_rank, dtype)
    got = run(plan, arrays, backend="sockets", wait_s=20, **how)
    for rank, (mine, want) in enumerate(zip(got, expected(plan, arrays), strict=True)):
        if want is not None:
            np.testing.assert_array_equal(mine, want, err_msg=f"{plan.name}, rank {rank}, {per_rank} elements")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_lowered_schedule_gives_numpys_result(name):
    """For no and a prime number of elements; of five ranks, or as many as it takes."""
    bound = next(bound for ranks in (5, 4) for bound in LIBRARY[name]().bindings(ranks))
    for per_rank in (0, 61):
        assert_right(plan_of(bound), per_rank)


def test_messages_larger_than_any_buffer_of_the_kernel_pass_each_other():
    """12 MB each way at once: a rank takes what arrives while it sends."""
    plan = plan_of(LIBRARY["recursive_doubling_all_reduce"]().bind(2))
    assert_right(plan, 3_000_001)


def test_one_rank_has_nobody_to_talk_to():
    assert_right(plan_of(ring_all_reduce().bind(1)), 7)


def test_in_place_and_other_operations_and_types():
    plan = plan_of(ring_all_reduce().bind(3), in_place=True)
    for dtype in ("int8", "float16", "uint64"):
        assert_right(plan, 1000, dtype)
    arrays = inputs(plan, 9, "int32")
    for op, of in {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.items():
        np.testing.assert_array_equal(run(plan, arrays, op, backend="sockets")[1], of.reduce(arrays))
    np.testing.assert_array_equal(run(plan, arrays, "avg", backend="sockets")[0], sum(arrays) // 3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3"])
def test_types_that_numpy_lacks_are_added_as_on_the_other_back_ends(dtype):
    plan = plan_of(ring_all_reduce().bind(2))
    width = np.uint16 if dtype == "bfloat16" else np.uint8
    random = np.random.default_rng(0)
    arrays = [random.integers(0, np.iinfo(width).max, 37).astype(width) for _ in range(2)]
    for one, other in zip(
        run(plan, arrays, dtype=dtype, backend="sockets"), run(plan, arrays, dtype=dtype), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_counts_known_at_run_time():
    """all_to_all_v: row s of the table is what rank s sends, in order; nothing to some."""
    counts = np.array([[1, 2, 0], [3, 0, 1], [2, 2, 2]])
    arrays = [np.arange(counts[r].sum() * 5, dtype=np.int64) + 1000 * r for r in range(3)]
    plan = plan_of(direct_all_to_all_v(counts).bind(3))
    for got, want in zip(run(plan, arrays, backend="sockets"), run(plan, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_plan_of_several_blocks_with_flags_between_them():
    """As MSCCL's interpreter reads it: blocks with one peer each way, which wait for each other."""
    text = write_msccl_xml(plan_of(LIBRARY["recursive_doubling_all_reduce"]().bind(4)), TARGETS["rccl"])[0]
    file = parse_plan(text.encode(), "x.xml")
    for per_rank in (64, 1001):
        assert_right(file.plan, per_rank)


def test_a_barrier_of_blocks_and_semaphores_hold_blocks_back():
    """The second block copies what the first has received: only after it has met it, and been released by it."""

    def of(rank: int):
        made = RankBuilder(rank, 1, 1, 2)
        first, second = made.block(), made.block(1)
        semaphore = made.semaphore()
        first.send(Span(Buffer.INPUT, 0), made.send_to(1 - rank))
        first.receive(made.receive_from(1 - rank), Span(Buffer.SCRATCH, 0))
        first.barrier(0, 2)
        first.copy(Span(Buffer.SCRATCH, 0), Span(Buffer.SCRATCH, 1))
        first.release(semaphore)
        second.barrier(0, 2)
        second.acquire(semaphore)
        second.copy(Span(Buffer.SCRATCH, 1), Span(Buffer.OUTPUT, 0))
        return made.build()

    plan = held_plan([of(0), of(1)], name="held back", collective="send_recv", chunks=1)
    assert_right(plan, 33)


def test_runs_follow_each_other_on_the_same_connections():
    """Three runs in a row, and then one on other data: what the first leaves behind must not show in the next."""
    plan = plan_of(ring_all_reduce().bind(2))
    listeners = [listen(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [one.getsockname()[:2] for one in listeners]
    found: dict[int, list[float]] = {}

    def as_rank(rank: int) -> None:
        with SocketRank(plan, rank, 10, addresses, listener=listeners[rank], wait_s=20) as comm:
            comm(np.ones(10, np.float32), times=3)
            found[rank] = comm(np.full(10, rank + 1, np.float32)).tolist()

    threads = [threading.Thread(target=as_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: [3.0] * 10, 1: [3.0] * 10}


def test_a_peer_that_was_called_for_another_size_is_not_believed():
    """Twice the elements: told at once, by whoever hears of it, and no memory is taken for what it says."""
    plan = plan_of(LIBRARY["recursive_doubling_all_reduce"]().bind(2))
    listeners = [listen(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [one.getsockname()[:2] for one in listeners]
    said: list[str] = []

    def as_rank(rank: int) -> None:
        count = 1000 * (rank + 1)
        try:
            with SocketRank(plan, rank, count, addresses, listener=listeners[rank], wait_s=5) as comm:
                comm(np.ones(count, np.float32))
        except GaveUpError as error:
            said.append(str(error))

    threads = [threading.Thread(target=as_rank, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any("no message has more than" in one for one in said)


def test_strangers_are_not_taken_for_peers():
    """Who knows no key, or another run's, is sent away; the right peer may still come."""
    plan = plan_of(LIBRARY["chain_broadcast"]().bind(2))
    listener = listen(("127.0.0.1", 0))
    address = listener.getsockname()[:2]
    strangers = [socket.create_connection(address) for _ in range(2)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
    strangers[1].close()
    key, got = os.urandom(16), {}

    def as_rank(rank: int, **how: object) -> None:
        with SocketRank(plan, rank, 4, [("127.0.0.1", 0), address], key=key, wait_s=20, **how) as comm:
            got[rank] = comm(np.full(4, rank, np.float32)).tolist()

    other = threading.Thread(target=as_rank, args=(1,), kwargs={"listener": listener})
    other.start()
    as_rank(0)
    other.join()
    strangers[0].close()
    assert got[1] == [0.0] * 4


def test_a_deadlock_ends_at_the_deadline_and_is_named():
    def of(rank: int):
        made = RankBuilder(rank, 1, 1)
        block = made.block()
        block.receive(made.receive_from(1 - rank), Span(Buffer.OUTPUT, 0))
        block.send(Span(Buffer.INPUT, 0), made.send_to(1 - rank))
        return made.build()

    plan = held_plan([of(0), of(1)], name="circle", collective="send_recv", chunks=1)
    said = r"block 0 of plan 'circle' waited 0.2 s for a message of rank \d: number 1 was due, 0 had come|rank \d closed|rank \d is gone"
    with pytest.raises(GaveUpError, match=said):
        run(plan, [np.ones(4, np.float32)] * 2, wait_s=0.2, backend="sockets")


def test_a_peer_that_is_not_there_is_named():
    plan = plan_of(LIBRARY["chain_broadcast"]().bind(2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = taken.getsockname()
        with pytest.raises(GaveUpError, match=rf"rank 0 could not reach rank 1 at 127.0.0.1 port {nobody[1]} within"):
            SocketRank(plan, 0, 4, [("127.0.0.1", 0), nobody], wait_s=0.1)


@pytest.mark.parametrize("plan", [one_sided_plan(2), sliced_plan()], ids=lambda plan: plan.name)
def test_what_reaches_into_a_peers_memory_is_refused(plan):
    reaches = any(kind >= 2 for rank in plan for kind in rank.connections["kind"].tolist())
    if reaches:
        with pytest.raises(
            ValueError, match=r"rank 0 has a [A-Z_]+ in the memory of a peer, which sockets do not reach"
        ):
            run(plan, inputs(plan, 8, "float32"), backend="sockets")
    else:
        assert_right(plan, 5000)


def test_sizes_that_ranks_do_not_share_are_one_clear_error():
    plan = plan_of(ring_all_reduce().bind(2))
    with pytest.raises(ValueError, match="needs inputs of one size on all ranks, not 3, 4 elements"):
        run(plan, [np.ones(3), np.ones(4)], backend="sockets")
    with pytest.raises(ValueError, match="is for 2 ranks, 1 addresses are given"):
        SocketRank(plan, 0, 3, [("127.0.0.1", 0)])
    with pytest.raises(ValueError, match="has ranks 0 to 1, not 2"):
        SocketRank(plan, 2, 3, [("127.0.0.1", 0)] * 2)


def test_blocks_that_share_a_chunk_move_their_part_of_it():
    """Two blocks, each with half of every chunk, cut where vectors end."""
    for _, plan in library_plans(2, 1):
        if any((rank.walks["parts"] > 1).any() for rank in plan):
            assert_right(plan, 1001)


def test_a_plan_of_many_chunks_whose_last_are_empty():
    """3 elements in 4 x 2 chunks: those behind the end of the buffer hold nothing."""
    plan = plan_of(LIBRARY["bruck_all_gather_2_ports"]().bind(4))
    assert_right(replace(plan, name="short"), 3)
