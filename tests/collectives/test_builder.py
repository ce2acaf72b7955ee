"""What people write, and what they are told when it can't be right."""

from __future__ import annotations

import pytest

from busbw.collectives import Collective, Routing
from busbw.collectives.algorithms import (
    direct_all_to_all,
    knomial_broadcast,
    recursive_doubling_all_gather,
    ring_all_gather,
    two_level_all_to_all,
)
from busbw.collectives.algorithms.bruck import bruck_all_to_all
from busbw.collectives.builder import (
    Axis,
    apply,
    blocks,
    build,
    chunks,
    parallel,
    pipeline,
    require,
    steps,
    transfer,
    when,
)
from busbw.collectives.builder import schedule as record
from busbw.collectives.expressions import var


def test_a_schedule_reads_like_its_source():
    @record("all_reduce")
    def example(node: Axis, gpu: Axis) -> None:
        data = chunks(gpu.size * 2)
        with pipeline(4), when(node < 1):
            for t in steps(gpu.size - 1):
                for i in parallel(2):
                    gpu.send(data[gpu * 2 - t, 2], to=gpu ^ 1, into=data[i], when=gpu > t, reduce=True)

    assert str(example) == (
        "example (all_reduce over node, gpu; |gpu| * 2 chunks)\n"
        "  pipeline of 4:\n"
        "    for t in range(|gpu| - 1):\n"
        "      for all i in range(2):\n"
        "        reduce data[gpu * 2 - t : 2] of (node, gpu) to data[i] of (node, gpu ^ 1) when node < 1 & t < gpu"
    )


def test_every_transfer_knows_the_line_that_said_it():
    @record("broadcast")
    def one(r: Axis) -> None:
        data = chunks(1)
        r.send(data[0], to=r + 1)

    assert one.bind(2).transfer(0).where.startswith("test_builder.py:")


def said(what: str) -> None:
    """Builds a schedule with one mistake."""

    def body(r: Axis) -> None:
        data = chunks(r.size)
        if what == "python if":
            if r < 1:
                r.send(data[0], to=1)
        elif what == "python and":
            r.send(data[0], to=1, when=(r < 1) and (r > 2))
        elif what == "foreign variable":
            r.send(data[var("q")], to=1)
        elif what == "no rank names r":
            transfer(data[r], frm={r: 0}, to={r: 1})
        elif what == "scratch applied":
            apply(bruck_all_to_all(), over=r, where=lambda c: data[c])
        elif what == "axes of another":
            apply(two_level_all_to_all(), over={"node": r}, where=lambda c: data[c])
        elif what == "to is no axis":
            transfer(data[0], to={r + 1: 0})  # type: ignore[dict-item]

    build("all_reduce", "wrong", ("r",), body)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("python if", r"r < 1 is known only when the schedule runs. Use select\(condition, a, b\), a guard"),
        ("python and", "instead of `and` and `or`"),
        ("foreign variable", r"test_builder.py:\d+: wrong: chunk q uses q, which means nothing here"),
        ("no rank names r", r"chunk r uses r, .*it must occur in the transfer's ranks, too"),
        ("scratch applied", r"test_builder.py:\d+: bruck_all_to_all uses input"),
        ("axes of another", r"two_level_all_to_all has the axes node, gpu; say along which of ours"),
        ("to is no axis", r"test_builder.py:\d+: r \+ 1 is no axis of wrong"),
    ],
)
def test_mistakes_are_named_with_their_line(what: str, message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        said(what)


def test_words_outside_of_a_schedule_are_refused():
    with pytest.raises(
        ValueError, match=r"test_builder.py:\d+: this can be said only inside a function marked @schedule"
    ):
        chunks(1)


def test_a_schedule_says_how_many_chunks_it_has():
    with pytest.raises(ValueError, match="silent doesn't say into how many chunks"):
        build("all_reduce", "silent", ("r",), lambda r: None)


def test_blocks_are_input_and_output():
    @record("send_recv")
    def shift(r: Axis) -> None:
        inputs, outputs = blocks(1)
        r.send(inputs[0], to=r + 1, into=outputs[0])

    assert "copy input[0] of (r) to output[0] of (r + 1)" in str(shift)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ring_all_gather().bind(), "needs r: bind"),
        (lambda: ring_all_gather().bind(2, 3), "has 1 axes"),
        (lambda: ring_all_gather().bind(2, r=2), "r given twice"),
        (lambda: ring_all_gather().bind(2, gpu=3), "knows no gpu: axes r; parameters none"),
        (lambda: ring_all_gather().bind(0), "axis r has size 0"),
        (lambda: recursive_doubling_all_gather().bind(6), "with r=6: the number of ranks along r must be a power of two"),
        (lambda: ring_all_gather().bind_to(Collective("all_reduce", 4, 8)), "is for all_gather, not all_reduce"),
        (lambda: two_level_all_to_all().bind_to(Collective("all_to_all", 8, 8), 2, 2), "the collective has 8 ranks"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(wrong, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_call_binds_its_schedule():
    assert ring_all_gather().bind_to(Collective("all_gather", 8, 1 << 20)).sizes == (("r", 8),)
    assert knomial_broadcast().bind_to(Collective("broadcast", 8, 1 << 20, root=3)).root == 3
    assert direct_all_to_all().bind_to(Collective.all_to_all_v([[1, 2], [3, 4]])).ranks == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Collective("sing", 2, 8), "'sing' is no collective"),
        (lambda: Collective("all_reduce", 0, 8), "at least one rank"),
        (lambda: Collective("all_reduce", 2, -1), "can't be negative"),
        (lambda: Collective("all_reduce", 2, 8, dtype="float"), "'float' is no dtype"),
        (lambda: Collective("all_reduce", 2, 8, op="xor"), "'xor' is no reduction"),
        (lambda: Collective("broadcast", 2, 8, root=2), "root 2 is none of the ranks 0..1"),
        (lambda: Collective.all_to_all_v([[1, 2]]), "square table"),
        (lambda: Routing.of([0], [[3]], ranks=2), "token 0 goes to rank 3"),
        (lambda: Collective("moe_dispatch", 3, 8, routing=Routing.of([0], [[1]], ranks=2)), "routing is for 2 ranks"),
    ],
)
def test_calls_that_make_no_sense_are_refused(wrong, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_requirements_are_said_by_the_author():
    @record("all_reduce")
    def even(r: Axis) -> None:
        chunks(1)
        require((r.size + 1) % 2, "only even numbers of ranks, because they pair up")

    with pytest.raises(ValueError, match="even with r=3: only even numbers of ranks, because they pair up"):
        even.bind(3)
    assert [bound.ranks for n in (1, 2, 3, 4) for bound in even.bindings(n)] == [2, 4]
