"""Wrong schedules made of right ones, and whether one of them is proved: `python -m benchmarks.design.wrong_schedules [--ranks N...] [--each N] [--seed N]`.

Each has one thing changed. What a proof says is compared with executing all ranks (`provenance.violations`), which decides. Undecided is no fault of a proof.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from busbw.collectives import violations
from busbw.collectives.expressions import Expr, eq, var
from busbw.collectives.passes import transformed
from busbw.collectives.proof import NotProvedError, prove
from busbw.collectives.schedule import BoundSchedule, Loop, Mode, Node, Par, Schedule, Seq, Transfer, transfers_of

__all__ = ["judgements", "wrong"]


def _expressions(t: Transfer, change: Callable[[Expr], Expr], which: int) -> Transfer:
    """The transfer with one of its expressions changed."""
    places = [
        lambda: replace(t, src=tuple(change(e) if i == which // 9 % len(t.src) else e for i, e in enumerate(t.src))),
        lambda: replace(t, dst=tuple(change(e) if i == which // 9 % len(t.dst) else e for i, e in enumerate(t.dst))),
        lambda: replace(t, source=replace(t.source, index=change(t.source.index))),
        lambda: replace(t, target=replace(t.target, index=change(t.target.index))),
        lambda: replace(t, source=replace(t.source, index=change(t.source.index)), target=replace(t.target, index=change(t.target.index))),
        lambda: replace(t, source=replace(t.source, count=change(t.source.count)), target=replace(t.target, count=change(t.target.count))),
        lambda: replace(t, source=replace(t.source, stride=change(t.source.stride)), target=replace(t.target, stride=change(t.target.stride))),
        lambda: replace(t, guard=change(t.guard)),
        lambda: replace(t, source=replace(t.source, stride=change(t.source.stride))),
    ]  # fmt: skip
    return places[which % len(places)]()


def _nudged(expr: Expr, lots: np.random.Generator) -> Expr:
    """The expression with one of its constants or variables one larger or smaller; or the whole."""
    leaves = _leaves(expr)
    at = leaves[int(lots.integers(len(leaves)))] if leaves and lots.random() < 0.7 else expr
    by = int(lots.choice([-1, 1, 2]))

    def new(e: Expr) -> Expr:
        if e is at:
            return e + by
        return replace(e, args=tuple(new(arg) for arg in e.args)) if e.args else e

    return new(expr)


def _leaves(expr: Expr) -> list[Expr]:
    return [leaf for arg in expr.args for leaf in _leaves(arg)] if expr.args else [expr]


def _changed_transfer(schedule: Schedule, t: Transfer, lots: np.random.Generator) -> Node:
    way = int(lots.integers(6))
    axis = var(schedule.axes[int(lots.integers(len(schedule.axes)))])
    if way == 0:
        return replace(t, guard=t.guard & ~eq(axis, int(lots.integers(3))))
    if way == 1:
        swap = {Mode.COPY: Mode.REDUCE, Mode.REDUCE: Mode.COPY, Mode.NETWORK_REDUCE: Mode.MULTICAST, Mode.MULTICAST: Mode.COPY}  # fmt: skip
        return replace(t, mode=swap.get(t.mode, t.mode), group=t.group if t.mode is Mode.NETWORK_REDUCE else ())
    if way == 2:
        return Par((t, t)) if lots.random() < 0.5 else Seq((t, t))
    which = int(lots.integers(1 << 16))
    return _expressions(t, lambda e: _nudged(e, lots), which)


def _changed_node(body: Node, lots: np.random.Generator) -> Node:
    """The tree with one inner node changed: turns of a loop, whether they are at once, the order of children."""
    nodes: list[Node] = []

    def walk(node: Node) -> None:
        if isinstance(node, Transfer):
            return
        nodes.append(node)
        for child in node.children if isinstance(node, Seq | Par) else (node.body,):
            walk(child)

    walk(body)
    if not nodes:
        return body
    at = nodes[int(lots.integers(len(nodes)))]

    def new(node: Node) -> Node:
        if isinstance(node, Transfer):
            return node
        if isinstance(node, Seq | Par):
            children = tuple(new(child) for child in node.children)
            if node is at:
                way = int(lots.integers(3))
                if way == 0:
                    return Par(children) if isinstance(node, Seq) else Seq(children)
                children = children[::-1] if way == 1 else children[1:]
            return replace(node, children=children)
        inner = replace(node, body=new(node.body))
        if node is not at or not isinstance(inner, Loop):
            return inner
        way = int(lots.integers(4))
        if way < 2:
            return replace(inner, count=inner.count + (1 if way else -1))
        return replace(inner, parallel=not inner.parallel) if way == 2 else replace(inner, descending=not inner.descending)  # fmt: skip

    return new(body)


def wrong(bound: BoundSchedule, each: int, lots: np.random.Generator) -> Iterator[BoundSchedule]:
    """`each` schedules with one thing changed in them; some are still right."""
    transfers = list(transfers_of(bound.schedule.body))
    for _ in range(each):
        try:
            if lots.random() < 0.3:
                body = _changed_node(bound.schedule.body, lots)
            else:
                at = transfers[int(lots.integers(len(transfers)))]
                new = _changed_transfer(bound.schedule, at, lots)
                body = transformed(bound.schedule.body, lambda t, at=at, new=new: new if t is at else t)  # type: ignore[misc]
            yield replace(bound, schedule=replace(bound.schedule, body=body))
        except (ValueError, TypeError):
            continue  # can't be said


def judgements(bound: BoundSchedule, each: int, lots: np.random.Generator) -> Iterator[tuple[str, BoundSchedule]]:
    """(judgement, schedule): `found`, `undecided`, `right` and proved, `alarm` (right, called wrong), `missed` (wrong, proved)."""
    for mutant in wrong(bound, each, lots):
        try:
            faults = violations(mutant)
        except (ValueError, KeyError, ZeroDivisionError):
            continue
        try:
            holds = prove(mutant).holds
        except NotProvedError:
            yield "undecided", mutant
            continue
        if holds:
            yield ("missed" if faults else "right"), mutant
        else:
            yield ("found" if faults else "alarm"), mutant


def main() -> None:
    """Prints how many were judged how, and every miss and false alarm."""
    from busbw.collectives.algorithms import LIBRARY

    parser = argparse.ArgumentParser(prog="python -m benchmarks.design.wrong_schedules", description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 6, 8, 12, 16])
    parser.add_argument("--each", type=int, default=30, help="changes of a schedule, its sizes and numbers of ranks")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    for name, make in LIBRARY.items():
        for ranks in given.ranks:
            for bound in list(make().bindings(ranks))[:3]:
                lots = np.random.default_rng([given.seed, ranks, *name.encode()])
                for judgement, mutant in judgements(bound, given.each, lots):
                    counts[judgement] += 1
                    if judgement in ("missed", "alarm"):
                        print(
                            f"{judgement}: {mutant.sizes_text}\n{mutant.schedule}\n{violations(mutant)[:1]}", flush=True
                        )
    print(dict(counts))


if __name__ == "__main__":
    main()
