"""Irregular schedules, held in tables: transfers with their step, forests of spanning trees. What synthesis finds becomes a Schedule here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from busbw.collectives.builder import (
    Axis,
    build,
    chunks,
    fixed_size,
    parallel,
    parameter,
    pipeline,
    require,
    scratch,
    steps,
    table_of,
    together,
    transfer,
)
from busbw.collectives.collective import ROOTED
from busbw.collectives.expressions import IntArray, as_expr, eq
from busbw.collectives.schedule import Location, Region, Schedule

__all__ = ["Tree", "forest", "from_transfers", "orbit_forest"]

_REDUCING = ("reduce_scatter", "reduce", "moe_combine")
_COPYING = ("all_gather", "broadcast", "gather", "scatter", "moe_dispatch", "all_to_all", "all_to_all_v", "send_recv")


@dataclass(frozen=True, slots=True)
class Tree:
    """A spanning tree: `parent[r]` is the rank above rank r, -1 at the root; it carries `chunks` chunks.

    `paths`: how a message reaches rank r from its parent (names of switches, say), where the tree's author cares.
    """

    root: int
    parent: Sequence[int]
    chunks: int = 1
    paths: Mapping[int, str] = field(default_factory=dict)

    def depths(self) -> IntArray:
        """Edges between the root and each rank. Raises ValueError if this is no spanning tree.

        >>> Tree(0, [-1, 0, 1]).depths().tolist()
        [0, 1, 2]
        """
        parent = np.array(self.parent, np.int64)
        if not 0 <= self.root < len(parent) or parent[self.root] != -1:
            raise ValueError(f"the root {self.root} must be a rank, and its parent -1")
        if ((parent < 0) & (np.arange(len(parent)) != self.root)).any() or (parent >= len(parent)).any():
            raise ValueError(f"tree of root {self.root}: every other rank has a parent among 0..{len(parent) - 1}")
        depth, above = np.zeros(len(parent), np.int64), np.arange(len(parent))
        for _ in range(len(parent)):
            climbing = above != self.root
            if not climbing.any():
                return depth
            depth, above = depth + climbing, np.where(climbing, parent[above], above)
        raise ValueError(
            f"tree of root {self.root}: ranks {np.flatnonzero(above != self.root)[:4].tolist()} go round in a circle"
        )


def from_transfers(
    kind: str,
    ranks: int,
    chunks: int,
    *,
    step: Any,
    src: Any,
    dst: Any,
    chunk: Any,
    count: Any = 1,
    reduce: Any = None,
    channel: Any = 0,
    paths: Sequence[str] | None = None,
    root: int = 0,
    name: str = "transfers",
) -> Schedule:
    """The schedule of timed transfers: in step[i], `count` chunks from chunk[i] on go from src[i] to dst[i].

    Chunks are numbered as `data` is (`busbw.collectives.schedule`); `chunks` of them make up size_bytes. For all_to_all(_v) chunk s * chunks + d k + i is the i-th from rank s to rank d,
    k = chunks / ranks; it may pass through other ranks. `reduce[i]`: it is added to what dst holds; without it the kind decides, and
    all_reduce must say. `paths[i]`: a hint, "" for none. Steps may be any increasing numbers; only their order counts.
    Raises ValueError for columns that don't fit.

    >>> s = from_transfers("broadcast", 3, 1, step=[0, 1], src=[0, 1], dst=[1, 2], chunk=[0, 0])
    >>> from busbw.collectives.provenance import violations
    >>> violations(s.bind())
    []
    """
    given = {"step": step, "src": src, "dst": dst, "chunk": chunk, "count": count, "reduce": reduce, "channel": channel}
    columns = _Columns.of(kind, ranks, chunks, paths, given)
    made = build(kind, name, ("r",), lambda r: columns.record(r, chunks, ranks, root))
    return replace(made, paths=columns.path_names)


def forest(
    kind: str, trees: Sequence[Tree], *, ranks: int | None = None, parts: int = 1, name: str = "forest"
) -> Schedule:
    """The schedule in which data flow down trees from their roots (reduced: up to them; all_reduce: up, then down).

    all_gather and reduce_scatter: trees of one root carry the chunks of that rank, in order; the sum of `Tree.chunks` must be the same for all ranks.
    broadcast and reduce: all trees have one root. all_reduce: any roots; tree after tree takes the next chunks.
    A rank passes a chunk to all its children in one step; depth steps. `parts` slices of every chunk follow each other (a default; bind(parts=...)).

    >>> chains = [Tree(0, [-1, 0, 1]), Tree(1, [2, -1, 1]), Tree(2, [1, 2, -1])]
    >>> from busbw.collectives.provenance import violations
    >>> violations(forest("all_gather", chains).bind()), violations(forest("all_reduce", chains).bind())
    ([], [])
    """
    if not trees:
        raise ValueError("a forest has at least one tree")
    ranks = ranks or len(trees[0].parent)
    if wrong := [t.root for t in trees if len(t.parent) != ranks]:
        raise ValueError(f"trees of the roots {wrong[:4]} don't span {ranks} ranks")
    first, chunks = _chunks_of_trees(kind, trees, ranks)
    depths = [tree.depths() for tree in trees]
    deepest = max(int(d.max()) for d in depths)
    parts_: dict[str, list[Any]] = {n: [] for n in ("step", "src", "dst", "chunk", "count", "reduce")}
    hints: list[str] = []
    for tree, begin, depth in zip(trees, first, depths, strict=True):
        child = np.flatnonzero(depth > 0)
        above = np.array(tree.parent, np.int64)[child]
        paths = [tree.paths.get(int(c), "") for c in child]
        ways = {"all_reduce": ("up", "down"), "reduce_scatter": ("up",), "reduce": ("up",)}.get(kind, ("down",))
        for way in ways:
            up = way == "up"
            parts_["step"].append(
                deepest - depth[child] if up else depth[child] - 1 + (deepest if len(ways) > 1 else 0)
            )
            parts_["src"].append(child if up else above)
            parts_["dst"].append(above if up else child)
            parts_["chunk"].append(np.full(len(child), begin))
            parts_["count"].append(np.full(len(child), tree.chunks))
            parts_["reduce"].append(np.full(len(child), int(up)))
            hints += paths
    columns = {n: np.concatenate(c) for n, c in parts_.items()}
    held = _Columns.of(kind, ranks, chunks, hints, {**columns, "channel": 0})

    def record(r: Axis) -> None:
        with pipeline(parameter("parts", parts)):
            held.record(r, chunks, ranks, trees[0].root)

    return replace(build(kind, name, ("r",), record), paths=held.path_names)


def orbit_forest(
    kind: str, trees: Sequence[Tree], sizes: Mapping[str, int], *, parts: int = 1, name: str = "orbit_forest"
) -> Schedule:
    """The all_gather or reduce_scatter whose trees are the translates of a few: all of root 0, every rank gets its copy, coordinates added axis by axis.

    `sizes`: the axes and their sizes, the last one counting fastest. One tree per orbit of roots serves a symmetric cluster.

    >>> pair = Tree(0, [-1, 0, 1, 2])  # node 0 gpu 0 -> gpu 1 -> node 1 gpu 0 -> gpu 1
    >>> from busbw.collectives.provenance import violations
    >>> violations(orbit_forest("all_gather", [pair], {"node": 2, "gpu": 2}).bind())
    []
    """
    if kind not in ("all_gather", "reduce_scatter"):
        raise ValueError(
            f"orbit_forest makes all_gather and reduce_scatter, not {kind}: in others roots differ from each other"
        )
    extents = list(sizes.values())
    if wrong := [t.root for t in trees if t.root != 0 or len(t.parent) != int(np.prod(extents))]:
        raise ValueError(f"{len(wrong)} of the trees don't have root 0 and span {int(np.prod(extents))} ranks")
    up = kind == "reduce_scatter"
    deepest = max(int(t.depths().max()) for t in trees)
    rows: list[tuple[int, int, int, int, int]] = []
    begin = 0
    for tree in trees:
        depth = tree.depths()
        for child in np.flatnonzero(depth > 0).tolist():
            at = deepest - int(depth[child]) if up else int(depth[child]) - 1
            ends = (child, tree.parent[child]) if up else (tree.parent[child], child)
            rows.append((at, *ends, begin, tree.chunks))
        begin += tree.chunks
    rows.sort()
    at, src, dst, piece, count = np.array(rows, np.int64).T

    def record(*axes: Axis) -> None:
        own = as_expr(0)
        for axis, extent in zip(axes, extents, strict=True):
            own = own * axis.size + axis
            fixed_size(axis, extent)
        total = as_expr(begin)
        for axis in axes:
            total = total * axis.size
        data = chunks(total)
        row_of = table_of("row", np.searchsorted(at, np.arange(deepest + 1)))
        sources = [table_of(f"src_{a.value}", x) for a, x in zip(axes, np.unravel_index(src, extents), strict=True)]
        targets = [table_of(f"dst_{a.value}", x) for a, x in zip(axes, np.unravel_index(dst, extents), strict=True)]
        piece_of, count_of = table_of("chunk", piece), table_of("count", count)
        with pipeline(parameter("parts", parts)):
            for t in steps(deepest):
                for i in parallel(row_of(t + 1) - row_of(t)):
                    e = row_of(t) + i
                    transfer(
                        data[own * begin + piece_of(e), count_of(e)],
                        frm={axis: axis + of(e) for axis, of in zip(axes, sources, strict=True)},
                        to={axis: axis + of(e) for axis, of in zip(axes, targets, strict=True)},
                        reduce=up,
                    )

    return build(kind, name, tuple(sizes), record)


def _chunks_of_trees(kind: str, trees: Sequence[Tree], ranks: int) -> tuple[list[int], int]:
    """(first chunk of each tree, chunks of the vector)."""
    weights = [tree.chunks for tree in trees]
    if min(weights) < 1:
        raise ValueError("every tree carries at least one chunk")
    if kind in ("all_gather", "reduce_scatter"):
        used = np.zeros(ranks, np.int64)
        offsets = []
        for tree in trees:
            offsets.append(int(used[tree.root]))
            used[tree.root] += tree.chunks
        if used.min() != used.max():
            raise ValueError(
                f"{kind}: the trees of rank {int(used.argmin())} carry {used.min()} chunks, those of rank {int(used.argmax())} {used.max()}; they must be equal"
            )
        each = int(used[0])
        return [tree.root * each + offset for tree, offset in zip(trees, offsets, strict=True)], each * ranks
    if kind in ("broadcast", "reduce"):
        if len({tree.root for tree in trees}) > 1:
            raise ValueError(f"{kind}: all trees have the same root")
    elif kind != "all_reduce":
        raise ValueError(f"no forest for {kind}: all_gather, reduce_scatter, all_reduce, broadcast, reduce")
    return [int(x) for x in np.cumsum([0, *weights[:-1]])], sum(weights)


@dataclass(frozen=True, slots=True)
class _Columns:
    """Rows of timed transfers, sorted by step, one group for each (region read, region written, reduced or not)."""

    groups: tuple[tuple[Region, Region, bool, dict[str, IntArray]], ...]
    steps: int
    scratch: int
    path_names: tuple[str, ...]
    all_to_all: bool
    rooted: bool

    @staticmethod
    def of(kind: str, ranks: int, chunks: int, paths: Sequence[str] | None, given: dict[str, Any]) -> _Columns:
        rows = len(np.atleast_1d(given["step"]))
        if given["reduce"] is None:
            if kind not in (*_COPYING, *_REDUCING):
                raise ValueError(f"{kind}: say for each transfer whether it reduces")
            given["reduce"] = int(kind in _REDUCING)
        names = ("", *sorted({path for path in paths or () if path}))
        number = {path: place - 1 for place, path in enumerate(names)}
        given["path"] = [number[path] for path in paths] if paths else -1
        column: dict[str, IntArray] = {}
        for title, values in given.items():
            array = np.asarray(values, np.int64)
            if array.ndim and len(array) != rows:
                raise ValueError(f"{title} has {len(array)} rows, step has {rows}")
            column[title] = np.array(np.broadcast_to(array, (rows,)))
        for title in ("src", "dst"):
            if rows and not (column[title].min() >= 0 and column[title].max() < ranks):
                raise ValueError(f"{title}: ranks are 0..{ranks - 1}")
        everywhere = kind in ("all_to_all", "all_to_all_v", "send_recv")
        space = chunks * ranks if everywhere else chunks
        if rows and not (column["chunk"].min() >= 0 and (column["chunk"] + column["count"]).max() <= space and column["count"].min() >= 1):  # fmt: skip
            raise ValueError(f"chunk: {space} chunks are numbered 0..{space - 1}")
        column["step"] = np.unique(column["step"], return_inverse=True)[1].reshape(rows).astype(np.int64)
        order = np.argsort(column["step"], kind="stable")
        column = {title: values[order] for title, values in column.items()}
        total = int(column["step"][-1]) + 1 if rows else 0
        if not everywhere:
            split = [(Region.DATA, Region.DATA, bool(flag), column["reduce"] == int(flag)) for flag in (False, True)]
            groups = tuple((a, b, flag, _taken(column, which)) for a, b, flag, which in split if which.any())
            return _Columns(groups, total, 0, names[1:], False, kind in ROOTED)
        return _Columns._through_scratch(kind, ranks, chunks, column, names[1:])

    @staticmethod
    def _through_scratch(
        kind: str, ranks: int, chunks: int, column: dict[str, IntArray], names: tuple[str, ...]
    ) -> _Columns:
        """all_to_all and send_recv: from input, through scratch where other ranks pass a chunk on, into output."""
        total = int(column["step"].max(initial=-1)) + 1
        if (column["count"] != 1).any():
            raise ValueError(f"{kind}: one chunk a row")
        source, inside = np.divmod(column["chunk"], chunks)
        each = chunks // ranks if kind != "send_recv" else 1
        final = inside // each if kind != "send_recv" else (source + 1) % ranks
        arrival = source * each + inside % each if kind != "send_recv" else inside
        passing = column["dst"] != final
        keys = np.unique((column["dst"] * chunks * ranks + column["chunk"])[passing])
        holder = keys // (chunks * ranks)
        slot = np.arange(len(keys)) - np.searchsorted(holder, holder)

        def slots(rank: IntArray, which: Any) -> IntArray:
            out = np.zeros(len(rank), np.int64)
            if len(keys):
                wanted = (rank * chunks * ranks + column["chunk"])[which]
                place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
                out[which] = np.where(keys[place] == wanted, slot[place], 0)
            return out

        starts = column["src"] == source
        column["from"] = np.where(starts, inside, slots(column["src"], ~starts))
        column["into"] = np.where(passing, slots(column["dst"], passing), arrival)
        groups = []
        for first in (True, False):
            for last in (True, False):
                which = (starts == first) & (passing != last)
                if which.any():
                    groups.append((Region.INPUT if first else Region.SCRATCH, Region.OUTPUT if last else Region.SCRATCH, False, _taken(column, which)))  # fmt: skip
        return _Columns(tuple(groups), total, int(slot.max()) + 1 if len(slot) else 0, names, True, False)

    def record(self, r: Axis, chunk_count: int, ranks: int, root: int) -> None:
        """Says these transfers, inside a schedule function."""
        chunks(chunk_count)
        fixed_size(r, ranks)
        if self.rooted:
            require(eq(parameter("root", root), root), f"its transfers start or end at root {root}")
        if self.scratch:
            scratch(self.scratch)
        looked_up = []
        for number, (read, written, reducing, column) in enumerate(self.groups):
            tag = str(number) if len(self.groups) > 1 else ""
            rows = np.searchsorted(column["step"], np.arange(self.steps + 1))
            titles = ("src", "dst", "from", "into") if self.all_to_all else ("src", "dst", "chunk", "count")
            tables = {title: table_of(title + tag, column[title]) for title in titles}
            for title, usual in (("channel", 0), ("path", -1)):
                if (column[title] != usual).any():
                    tables[title] = table_of(title + tag, column[title])
            looked_up.append((read, written, reducing, table_of("row" + tag, rows), tables))
        for t in steps(self.steps):
            with together():
                for read, written, reducing, row_of, tables in looked_up:
                    for i in parallel(row_of(t + 1) - row_of(t)):
                        e = row_of(t) + i
                        if self.all_to_all:
                            source, target = Location(read, tables["from"](e)), Location(written, tables["into"](e))
                        else:
                            source = target = Location(read, tables["chunk"](e), tables["count"](e))
                        transfer(
                            source,
                            frm={r: tables["src"](e)},
                            to={r: tables["dst"](e)},
                            into=target,
                            reduce=reducing,
                            channel=tables["channel"](e) if "channel" in tables else 0,
                            path=tables["path"](e) if "path" in tables else -1,
                        )


def _taken(column: dict[str, IntArray], which: Any) -> dict[str, IntArray]:
    return {title: values[which] for title, values in column.items()}
