"""A plan gives numpy's result on every back end, whatever the size; in the simulated memory no legal plan races, and illegal ones are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.design.mutants import library_plans, mutants
from benchmarks.design.one_sided import group_plan, one_sided_plan, packet_plan, port_plan, sliced_plan
from benchmarks.execute.plans import expected, inputs

from busbw.collectives import plan_of
from busbw.collectives.algorithms import (
    LIBRARY,
    direct_moe_dispatch,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
)
from busbw.collectives.algorithms.all_to_all_v import direct_all_to_all_v
from busbw.collectives.collective import Routing
from busbw.collectives.exchange.files import parse_plan
from busbw.collectives.exchange.msccl_xml import write_msccl_xml
from busbw.collectives.exchange.targets import TARGETS
from busbw.collectives.legality import verify_plan
from busbw.collectives.plan import Buffer, Order, Plan, Protocol, RankBuilder, Span, held_plan
from busbw.execution import GaveUpError, run, simulate
from busbw.execution.linking import link

SAMPLE = [
    "ring_all_reduce", "bruck_all_gather_2_ports", "pat_reduce_scatter", "swing_all_reduce", "double_binary_tree_all_reduce", "chain_broadcast",
    "direct_scatter", "binomial_gather", "pairwise_all_to_all", "nvls_all_reduce", "hierarchical_all_reduce_sharp", "ring_send_recv",
    "binomial_reduce", "dissemination_barrier",
]  # fmt: skip
"""One of each way to lower: loops kept and written out, several blocks, scratch, a switch, roots. All of them: `python -m benchmarks execute --only X5`."""
MANNERS = [
    one_sided_plan(2),
    one_sided_plan(3),
    packet_plan(),
    group_plan(3),
    sliced_plan(),
    port_plan(2),
    port_plan(3),
]


def with_protocol(plan: Plan, protocol: Protocol) -> Plan:
    """The same with another protocol on its FIFOs."""

    def of(rank: int):
        made = plan.rank(rank)
        connections = made.connections.copy()
        connections["protocol"] = protocol
        return replace(made, connections=connections)

    return replace(plan, rank_plan=of, protocol=protocol)


def assert_right(plan: Plan, per_rank: int, dtype: str = "float32", **how: object) -> None:
    arrays = inputs(plan, per_rank, dtype)
    for rank, (got, want) in enumerate(zip(run(plan, arrays, **how), expected(plan, arrays), strict=True)):
        if want is not None:
            np.testing.assert_array_equal(
                got, want, err_msg=f"{plan.name}, rank {rank} of {plan.ranks}, {per_rank} elements"
            )


@pytest.mark.parametrize("name", SAMPLE)
def test_a_lowered_schedule_gives_numpys_result(name):
    """In place and out of place, for no, one, a prime number of elements, and more than fit a slot."""
    for ranks in (1, 2, 3, 4):
        for bound in LIBRARY[name]().bindings(ranks):
            plan = plan_of(bound)
            for per_rank in (0, 1, 61):
                assert_right(plan, per_rank)
    assert_right(plan, 100_003)


@pytest.mark.parametrize("plan", MANNERS, ids=lambda plan: f"{plan.name}-{plan.ranks}")
def test_a_plan_in_the_manner_of_mscclpp_gives_numpys_result(plan):
    """Puts, signals, packets with two scratches, a switch, slices: on threads, and on processes, whose windows are mapped elsewhere."""
    for per_rank in (1, 37, 5000):
        assert_right(plan, per_rank)
    assert_right(plan, 37, backend="processes")


@pytest.mark.parametrize("protocol", list(Protocol))
def test_protocols_carry_the_same_data(protocol):
    """Tails of packets: 1 to 17 bytes over words of 8, lines of 120."""
    plan = with_protocol(plan_of(ring_all_reduce().bind(3)), protocol)
    for per_rank in (1, 2, 7, 17, 241, 30_001):
        assert_right(plan, per_rank, "int8")
    for dtype in ("float16", "float64", "uint32"):
        assert_right(plan, 257, dtype)


def test_first_sends_go_ahead_of_the_run_before_only_where_slots_hold_both():
    """Two ranks exchange whole vectors, one message a run, two slots: the next run's send may go ahead. With one slot it would wait for a peer that does the same.
    A ring's first send may not: later rows send on its FIFO, whose order counts. Pieces of 64 bytes make many runs.
    """
    exchange = plan_of(recursive_doubling_all_reduce().bind(2), in_place=True)
    one_slot = with_protocol(exchange, Protocol.ZERO_COPY)
    ring = plan_of(ring_all_reduce().bind(3))
    for plan, leads in ((exchange, 1), (one_slot, 0), (ring, 0)):
        linked = link(plan, [1000] * plan.ranks, 4, slot_bytes=64)
        assert linked.runs > 2
        assert [int(leads) for one in linked.ranks for leads in one.block_runs[1::2]] == [leads] * plan.ranks
        for seed in range(3):
            found = simulate(
                plan, inputs(plan, 65, "int32"), seed=seed, threads=1 + seed % 2, launches=2, slot_bytes=64
            )
            assert found.clean, found.races or found.deadlock
            for got, want in zip(found.outputs, expected(plan, inputs(plan, 65, "int32")), strict=True):
                np.testing.assert_array_equal(got, want)


def test_in_place_plans_and_operations():
    plan = plan_of(ring_all_reduce().bind(2), in_place=True)
    assert_right(plan, 1000)
    arrays = inputs(plan, 9, "int32")
    for op, of in {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.items():
        np.testing.assert_array_equal(run(plan, arrays, op)[1], of(*arrays))
    np.testing.assert_array_equal(run(plan, arrays, "avg")[0], (arrays[0] + arrays[1]) // 2)
    assert_right(plan_of(ring_all_gather().bind(3), in_place=True), 33)


def float8_values(mantissa: int, bias: int) -> np.ndarray:
    """What the 256 codes mean: OFP8, revision 1.0, tables 1 and 2."""
    codes = np.arange(256)
    exponent, fraction = codes >> mantissa & (0x7F >> mantissa), codes & ((1 << mantissa) - 1)
    size = np.where(
        exponent,
        (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent - bias),
        fraction / (1 << mantissa) * 2.0 ** (1 - bias),
    )
    if mantissa == 3:
        size[(codes & 0x7F) == 0x7F] = np.nan
    else:
        size[(codes & 0x7C) == 0x7C] = np.where(fraction[(codes & 0x7C) == 0x7C], np.nan, np.inf)
    return np.where(codes & 0x80, -size, size)


@pytest.mark.parametrize(("dtype", "mantissa", "bias"), [("float8_e4m3", 3, 7), ("float8_e5m2", 2, 15)])
def test_float8_sums_are_rounded_to_nearest_even_and_saturate(dtype, mantissa, bias):
    """All 65,536 pairs: the finite code nearest to the exact sum, the even one of two; what is too large becomes the largest; NaN stays."""
    values = float8_values(mantissa, bias)
    first, second = (grid.reshape(-1).astype(np.uint8) for grid in np.meshgrid(np.arange(256), np.arange(256)))
    with np.errstate(invalid="ignore"):
        exact = values[first] + values[second]
    got = run(plan_of(LIBRARY["recursive_doubling_all_reduce"]().bind(2), in_place=True), [first, second], dtype=dtype)[
        0
    ]
    positive = values[:0x7F][np.isfinite(values[:0x7F])]
    size = np.minimum(np.nan_to_num(np.abs(exact), nan=0.0, posinf=positive[-1]), positive[-1])
    above = np.clip(np.searchsorted(positive, size), 1, len(positive) - 1)
    low, high = size - positive[above - 1], positive[above] - size
    nearest = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    nan = np.isnan(exact)
    np.testing.assert_array_equal(np.isnan(values[got]), nan)
    np.testing.assert_array_equal(np.abs(values[got])[~nan], positive[nearest][~nan])
    moved = ~nan & (size > 0)
    np.testing.assert_array_equal(np.sign(values[got])[moved & (nearest > 0)], np.sign(exact)[moved & (nearest > 0)])


def test_counts_and_routes_known_at_run_time():
    """all_to_all_v: row s of the table is what rank s sends, in order; tokens of a dispatch come where their experts are."""
    counts = np.array([[1, 2, 0], [3, 0, 1], [2, 2, 2]])
    plan = plan_of(direct_all_to_all_v(counts).bind(3))
    each = 5
    arrays = [np.arange(counts[r].sum() * each, dtype=np.int64) + 1000 * r for r in range(3)]
    begin = np.concatenate([np.zeros((3, 1), int), np.cumsum(counts, 1)], 1) * each
    for rank, got in enumerate(run(plan, arrays)):
        want = [arrays[s][begin[s, rank] : begin[s, rank + 1]] for s in range(3)]
        np.testing.assert_array_equal(got, np.concatenate(want))
    routing = Routing.of([0, 1, 1], [[1, 1], [1, 0], [0, 1]], ranks=2)
    plan = plan_of(direct_moe_dispatch(routing).bind(2))
    tokens = np.arange(12, dtype=np.float32).reshape(3, 4)
    zero = np.zeros_like(tokens)
    given = [np.where(routing.home.array[:, None] == rank, tokens, zero).reshape(-1) for rank in range(2)]
    for rank, got in enumerate(run(plan, given)):
        wanted = routing.wanted.array[:, rank] > 0
        np.testing.assert_array_equal(got.reshape(3, 4)[wanted], tokens[wanted])


def test_a_plan_read_from_msccl_xml_runs():
    """What MSCCL's and RCCL's interpreters read: blocks with one peer each way, dependences between them, one protocol."""
    for protocol in (Protocol.SIMPLE, Protocol.LL128):
        text = write_msccl_xml(
            replace(plan_of(LIBRARY["recursive_doubling_all_reduce"]().bind(4)), protocol=protocol), TARGETS["rccl"]
        )[0]
        file = parse_plan(text.encode(), "x.xml")
        assert file.verify().legal
        for per_rank in (64, 1001):
            assert_right(file.plan, per_rank)


@pytest.mark.parametrize(
    "plan",
    [plan_of(LIBRARY[name]().bind(3)) for name in ("ring_all_reduce", "direct_all_to_all")] + MANNERS,
    ids=lambda p: p.name,
)
def test_a_legal_plan_does_not_race(plan):
    """Blocks of one to three threads, two launches: what the first leaves behind must be ordered before the second."""
    arrays = inputs(plan, 13, "float32")
    for seed in range(3):
        found = simulate(plan, arrays, seed=seed, threads=1 + seed, launches=2)
        assert found.clean, (found.deadlock, found.races)
        for got, want in zip(found.outputs, expected(plan, arrays), strict=True):
            np.testing.assert_array_equal(got, want)


def test_packets_of_a_fifo_do_not_race():
    for protocol in (Protocol.LL, Protocol.LL128):
        plan = with_protocol(plan_of(ring_all_reduce().bind(2)), protocol)
        found = simulate(plan, inputs(plan, 70, "float32"), seed=1, threads=2, launches=5)
        assert found.clean, (found.deadlock, found.races)


def test_a_signal_through_another_port_overtakes_puts():
    """Puts of one ring settle in any order, and a strong signal behind them; rings of two ports know nothing of each other."""
    for strong in (True, False):
        plan = port_plan(2, strong=strong)
        assert verify_plan(plan).legal is strong
        found = [simulate(plan, inputs(plan, 8, "float32"), seed=seed).clean for seed in range(20)]
        assert all(found) is strong


@pytest.mark.parametrize("order", [Order.RELAXED, Order.RELEASE])
def test_blocks_of_a_rank_are_ordered_by_flags(order):
    """One block copies a chunk, another copies it on, after its flag: a relaxed flag orders nothing."""

    def one(rank: int):
        builder = RankBuilder(rank, 1, 1, 1)
        first, second = builder.block(), builder.block()
        first.copy(Span(Buffer.INPUT, 0), Span(Buffer.SCRATCH, 0))
        first.set_flag(order)
        second.wait_flag(0, 1)
        second.copy(Span(Buffer.SCRATCH, 0), Span(Buffer.OUTPUT, 0))
        return builder.build()

    plan = held_plan([one(0)], name="flags", collective="all_reduce", chunks=1)
    found = [simulate(plan, [np.ones(8, np.float32)], seed=seed).clean for seed in range(5)]
    assert found == [order is Order.RELEASE] * 5


def test_what_the_verifier_calls_a_race_is_a_race_in_the_simulated_memory():
    """Every fifth mutant of plans with puts, signals and packets, and of a lowered one; those whose only fault is a count or an unused message may go unseen."""
    racing = {"race", "weak-order", "relaunch-race", "not-entered", "deadlock", "wrong-result"}
    plans = [*MANNERS[:1], *MANNERS[2:3], next(plan for _, plan in library_plans(2, 1))]
    seen = 0
    for plan in plans:
        arrays = [array + 1 for array in inputs(plan, 64, "float32")]
        right = simulate(plan, arrays, launches=2).outputs
        for mutant in list(mutants(plan, 2, np.random.default_rng(0)))[::3]:
            broken = {violation.rule for violation in verify_plan(mutant.plan).violations}
            if broken and not broken <= racing:
                continue

            def found(seed: int, plan: Plan = mutant.plan, arrays: list = arrays, right: list = right) -> bool:
                one = simulate(plan, arrays, seed=seed, threads=1 + seed % 3, launches=2)
                return not one.clean or not all(map(np.array_equal, one.outputs, right))

            assert any(map(found, range(9 if broken else 3))) == bool(broken), (
                plan.name,
                mutant.kind,
                mutant.row,
                broken,
            )
            seen += 1
    assert seen > 5


def test_a_deadlock_ends_at_the_deadline_and_is_named():
    def one(rank: int):
        builder = RankBuilder(rank, 1, 1)
        block = builder.block()
        block.receive(builder.receive_from(1 - rank), Span(Buffer.OUTPUT, 0))
        block.send(Span(Buffer.INPUT, 0), builder.send_to(1 - rank))
        return builder.build()

    plan = held_plan([one(0), one(1)], name="circle", collective="send_recv", chunks=1)
    with pytest.raises(
        GaveUpError,
        match=r"rank \d, block 0 of plan 'circle' waited 0.1 s for a message of rank \d: number 1 was due, 0 had come",
    ):
        run(plan, [np.ones(4, np.float32)] * 2, wait_s=0.1)
    assert "spins" in simulate(plan, [np.ones(4, np.float32)] * 2).deadlock


@pytest.mark.parametrize(
    ("arrays", "how", "said"),
    [
        ([np.ones(3)], {}, "is for 2 ranks, 1 arrays are given"),
        ([np.ones(3), np.ones(4)], {}, "needs inputs of one size on all ranks, not 3, 4 elements"),
        ([np.ones(3), np.ones(3, np.int32)], {}, "arrays of one type are needed, not float64, int32"),
        ([np.ones(3)] * 2, {"op": "mean"}, "no operation 'mean'; there are sum"),
        ([np.ones(3)] * 2, {"dtype": "float32"}, "float32 takes 4 bytes, an element of the arrays 8"),
        ([np.ones(3, bool)] * 2, {}, "no arithmetic of bool; there is int8"),
        ([np.ones((4, 4))[:, 1]] * 2, {}, "not contiguous"),
        ([np.ones(3)] * 2, {"backend": "gpu"}, "no back end 'gpu'"),
    ],
)
def test_wrong_use_is_one_clear_error(arrays, how, said):
    with pytest.raises(ValueError, match=said):
        run(plan_of(ring_all_reduce().bind(2)), arrays, **how)


def test_parts_that_do_not_come_out_even_are_refused():
    plan = plan_of(LIBRARY["direct_all_to_all"]().bind(2))
    with pytest.raises(ValueError, match="3 elements have no equal part for each of 2 ranks"):
        run(plan, [np.ones(3)] * 2)
