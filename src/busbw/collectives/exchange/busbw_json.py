"""Our own format of a plan: JSON with a `schema` number, all that a plan can say. Described in docs/plans.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from busbw.collectives.exchange.json_fields import Fields, read_json
from busbw.collectives.kinds import COLLECTIVES
from busbw.collectives.plan import (
    LOCAL,
    MAX_LOOPS,
    BlockBuilder,
    Buffer,
    Columns,
    ConnectionKind,
    Op,
    Order,
    Plan,
    Promise,
    Protocol,
    RankBuilder,
    RankPlan,
    Reduction,
    Span,
    held_plan,
)

__all__ = ["FORMAT", "SCHEMA", "looks_like_busbw_json", "read_busbw_json", "write_busbw_json"]

FORMAT = "busbw-plan"
SCHEMA = 1
_MOST = 2**31 - 1
_MOST_BYTES = 2**63 - 1
_BUFFERS = {buffer.name.lower(): buffer for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)}
_ORDERS = {order.name.lower(): order for order in Order}
_REDUCTIONS = {reduction.name.lower(): reduction for reduction in Reduction}
_PROTOCOLS = {protocol.name.lower(): protocol for protocol in Protocol}
_KINDS = {kind.name.lower(): kind for kind in ConnectionKind}
_OPS = {op.name.lower(): op for op in Op if op is not Op.OPERAND}
_DEFAULT_ORDER = {
    Op.SIGNAL: Order.RELEASE,
    Op.WAIT: Order.ACQUIRE,
    Op.RELEASE: Order.RELEASE,
    Op.ACQUIRE: Order.ACQUIRE,
    Op.FLAG_SET: Order.RELEASE,
    Op.FLAG_WAIT: Order.ACQUIRE,
}
_FLAGS = ("in_place", "out_of_place", "blocks_in_order", "double_scratch", "shared_scratch")


def looks_like_busbw_json(value: Any) -> bool:
    """Whether a JSON value is a plan in our format."""
    return isinstance(value, dict) and value.get("format") == FORMAT


# Writing


def write_busbw_json(plan: Plan) -> str:
    """The file; reading it gives the same plan. What a custom collective promises is written out, a row a rank."""
    top = {"format": FORMAT, "schema": SCHEMA} | plan.header() | {"protocol": plan.protocol.name.lower()}
    if (promise := plan.promise) is not None:
        top["promise"] = {
            side: [content(rank).tolist() for rank in range(plan.ranks)]
            for side, content in (("before", promise.before), ("after", promise.after))
        }
    body = json.dumps(top, indent=1)[:-2]
    ranks = ",\n".join(" " + json.dumps(_rank(rank)) for rank in plan)
    return f'{body},\n "rank_plans": [\n{ranks}\n ]\n}}\n'


def _rank(rank: RankPlan) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "input_chunks": rank.input_chunks,
        "output_chunks": rank.output_chunks,
        "scratch_chunks": rank.scratch_chunks,
        "connections": [_connection(row) for row in rank.connections],
        "groups": [{"ranks": list(group.ranks), "buffer": group.buffer.name.lower()} for group in rank.groups],
        "semaphores": list(rank.semaphores),
        "blocks": [
            {"channel": int(block["channel"]), "instructions": _instructions(rank, rank.rows(number))}
            for number, block in enumerate(rank.blocks)
        ],
    }


def _connection(row: Columns) -> dict[str, Any]:
    out = {
        "kind": ConnectionKind(int(row["kind"])).name.lower(),
        "peer": int(row["peer"]),
        "channel": int(row["channel"]),
        "protocol": Protocol(int(row["protocol"])).name.lower(),
    }
    return out | ({"slots": int(row["slots"])} if row["slots"] else {})


def _instructions(rank: RankPlan, rows: Columns) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    place = 0
    while place < len(rows):
        row = rows[place]
        op = Op(int(row["op"]))
        mine = rows[place : place + 1 + int(row["more"])]
        place += len(mine)
        one: dict[str, Any] = {"op": op.name.lower()}
        if op in (Op.LOOP, Op.SLICES):
            one |= (
                {"times": int(row["count"])}
                if op is Op.LOOP
                else {"slice_bytes": int(row["src"]), "chunks": int(row["count"])}
            )
            one["body"] = _instructions(rank, rows[place : place + int(row["dst"])])
            place += int(row["dst"])
        elif op is Op.BARRIER:
            one |= {"barrier": int(row["via"]), "blocks": int(row["count"])}
        elif op is Op.FLAG_WAIT:
            one |= {"block": int(row["via"]), "times": int(row["src"])} | _step(rank.walks[row["walk"]]["src_step"])
        elif op in (Op.RELEASE, Op.ACQUIRE):
            one["semaphores"] = mine["via"].tolist()
        elif op not in (Op.SYNC, Op.FLAG_SET):
            one["operands"] = [_operand(rank, operand) for operand in mine]
        order, usual = Order(int(row["order"])), _DEFAULT_ORDER.get(op, Order.RELAXED)
        if order is not usual:
            one["order"] = order.name.lower()
        if row["reduction"]:
            one["reduction"] = Reduction(int(row["reduction"])).name.lower()
        walk = rank.walks[row["walk"]]
        if walk["parts"] != 1:
            one["share"] = [int(walk["part"]), int(walk["parts"])]
        out.append(one)
    return out


def _operand(rank: RankPlan, row: Columns) -> dict[str, Any]:
    walk = rank.walks[row["walk"]]
    out: dict[str, Any] = {}
    if row["via"] != LOCAL:
        out["via"] = int(row["via"])
        if np.any(walk["via_step"]):
            out["via_step"] = _trimmed(walk["via_step"])
    for side in ("src", "dst"):
        buffer = int(row[f"{side}_buffer"])
        if buffer == Buffer.NONE:
            continue
        span = {"buffer": Buffer(buffer).name.lower(), "index": int(row[side]), "count": int(row["count"])}
        span |= _step(walk[f"{side}_step"])
        if walk[f"{side}_wrap"]:
            span |= {"first": int(walk[f"{side}_first"]), "wrap": int(walk[f"{side}_wrap"])}
        out[side] = span
    return out


def _step(steps: Columns) -> dict[str, Any]:
    return {"step": _trimmed(steps)} if np.any(steps) else {}


def _trimmed(steps: Columns) -> list[int]:
    values = steps.tolist()
    while values and values[-1] == 0:
        values.pop()
    return [int(value) for value in values]


# Reading


def read_busbw_json(data: bytes | str, path: str) -> Plan:
    """The plan that a file holds. Raises InputError for anything that is not as docs/plans.md says."""
    top = read_json(data, path)
    if top.text("format") != FORMAT:
        raise top.wrong(f"is no {FORMAT}")
    if top.number("schema", 1, _MOST) != SCHEMA:
        raise top.wrong(f"has schema {top.value['schema']}; this version reads {SCHEMA}. Read it with a newer one")
    ranks = top.number("ranks", 1, _MOST)
    given = list(top.objects("rank_plans"))
    if len(given) != ranks:
        raise top.wrong(f"has {len(given)} rank_plans for {ranks} ranks")
    counts = None
    if top.value.get("counts") is not None:
        rows = top.items("counts")
        if len(rows) != ranks or any(
            not isinstance(row, list)
            or len(row) != ranks
            or any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= _MOST for n in row)
            for row in rows
        ):
            raise top.wrong("has counts that are no square table of whole numbers, a row and a column a rank")
        counts = np.array(rows, np.int64)
    least = top.number("min_bytes", 0, _MOST_BYTES, 0)
    most = top.number("max_bytes", 0, _MOST_BYTES) if top.value.get("max_bytes") is not None else None
    threads = top.number("threads_per_block", 1, _MOST) if top.value.get("threads_per_block") is not None else None
    header: dict[str, Any] = {
        "name": top.text("name"),
        "collective": top.text("collective", (*COLLECTIVES, "custom")),
        "chunks": top.number("chunks", 0, _MOST),
        "root": top.number("root", 0, ranks - 1, 0),
        "protocol": _PROTOCOLS[top.text("protocol", tuple(_PROTOCOLS), "simple")],
        "counts": counts,
        "promise": _promise(top, given) if top.value.get("promise") is not None else None,
        "min_bytes": least,
        "max_bytes": most,
        "threads_per_block": threads,
        "alignment_bytes": top.number("alignment_bytes", 1, _MOST, 1),
    }
    header |= {name: top.flag(name, name in ("out_of_place", "blocks_in_order")) for name in _FLAGS}
    if not header["in_place"] and not header["out_of_place"]:
        raise top.wrong("is for use neither in place nor out of place")
    return held_plan([_read_rank(one, place, ranks) for place, one in enumerate(given)], **header)


def _promise(top: Fields, ranks: Sequence[Fields]) -> Promise:
    """What a custom collective promises: contents of input chunks before, and of output chunks after; -1 for none, and for anything."""
    fields = top.object("promise")
    sides = []
    for side, buffer in (("before", "input_chunks"), ("after", "output_chunks")):
        rows = fields.items(side)
        if len(rows) != len(ranks):
            raise fields.wrong(f"has {len(rows)} rows of {side} for {len(ranks)} ranks")
        held = []
        for row, rank in zip(rows, ranks, strict=True):
            values = Fields({side: row}, fields.path, fields.at).numbers(side, -1, _MOST)
            if len(values) > rank.number(buffer, 0, _MOST):
                raise fields.wrong(f"says of more chunks of {side} than {rank.at} has {buffer}")
            held.append(np.array(values, np.int64))
        sides.append(held)
    before, after = sides
    return Promise(before.__getitem__, after.__getitem__)


def _read_rank(fields: Fields, place: int, ranks: int) -> RankPlan:
    if fields.number("rank", 0, _MOST) != place:
        raise fields.wrong(f"has rank {fields.value['rank']}; ranks are listed in order, so {place} is needed")
    builder = RankBuilder(
        place,
        fields.number("input_chunks", 0, _MOST),
        fields.number("output_chunks", 0, _MOST),
        fields.number("scratch_chunks", 0, _MOST, 0),
    )
    groups = []
    for group in fields.objects("groups", []):
        members = tuple(group.numbers("ranks", 0, ranks - 1))
        if not members:
            raise group.wrong("has no ranks")
        builder.declare_group(members, _BUFFERS[group.text("buffer", tuple(_BUFFERS))])
        groups.append(members)
    vias: list[int] = []
    for connection in fields.objects("connections", []):
        kind = _KINDS[connection.text("kind", tuple(_KINDS))]
        peer = connection.number("peer", 0, (len(groups) if kind is ConnectionKind.SWITCH else ranks) - 1)
        if kind is not ConnectionKind.SWITCH and peer == place:
            raise connection.wrong("leads to the rank itself")
        protocol = _PROTOCOLS[connection.text("protocol", tuple(_PROTOCOLS), "simple")]
        channel, slots = connection.number("channel", 0, _MOST, 0), connection.number("slots", 0, 65_535, 0)
        vias.append(builder.connect(kind, peer, channel, protocol, slots))
        if vias[-1] != len(vias) - 1:
            raise connection.wrong("stands there twice")
    for value in fields.numbers("semaphores", 0, _MOST, []):
        builder.semaphore(value)
    semaphores = len(fields.items("semaphores", []))
    for block in fields.objects("blocks"):
        _Reader(builder.block(block.number("channel", 0, _MOST, 0)), len(vias), semaphores).read(
            block.objects("instructions")
        )
    return builder.build()


class _Reader:
    """Reads the instructions of a block."""

    def __init__(self, block: BlockBuilder, connections: int, semaphores: int) -> None:
        self.block, self.connections, self.semaphores = block, connections, semaphores
        self.in_slices = False

    def read(self, instructions: Iterator[Fields]) -> None:
        """Appends them."""
        for one in instructions:
            try:
                self._one(one, _OPS[one.text("op", tuple(_OPS))])
            except ValueError as error:  # what a builder refuses
                raise one.wrong(f"can't be: {error}") from None

    def _one(self, one: Fields, op: Op) -> None:
        order = _ORDERS[one.text("order", tuple(_ORDERS), _DEFAULT_ORDER.get(op, Order.RELAXED).name.lower())]
        if op is Op.LOOP:
            with self.block.loop(one.number("times", 0, _MOST)):
                self.read(one.objects("body"))
        elif op is Op.SLICES:
            if self.in_slices:
                raise one.wrong("stands inside of another slices")
            self.in_slices = True
            with self.block.slices(one.number("slice_bytes", 1, _MOST), one.number("chunks", 1, _MOST)):
                self.read(one.objects("body"))
            self.in_slices = False
        elif op is Op.BARRIER:
            self.block.barrier(one.number("barrier", 0, _MOST), one.number("blocks", 1, _MOST))
        elif op is Op.SYNC:
            self.block.sync()
        elif op is Op.FLAG_SET:
            self.block.set_flag(order)
        elif op is Op.FLAG_WAIT:
            self.block.wait_flag(
                one.number("block", 0, _MOST), one.number("times", 0, _MOST), self._steps(one, "step"), order
            )
        elif op in (Op.RELEASE, Op.ACQUIRE):
            numbers = one.numbers("semaphores", 0, self.semaphores - 1)
            (self.block.release if op is Op.RELEASE else self.block.acquire)(*numbers, order=order)
        else:
            self._moving(one, op, order)

    def _moving(self, one: Fields, op: Op, order: Order) -> None:
        share = tuple(one.numbers("share", 0, 65_535, [0, 1]))
        if len(share) != 2 or share[0] >= share[1]:
            raise one.wrong(f"has share {list(share)}; [part, parts] with part < parts is needed")
        operands: list[tuple[int, Span | None, Span | None]] = []
        steps: tuple[int, ...] = ()
        for operand in one.objects("operands"):
            steps = self._steps(operand, "via_step")
            via = operand.number("via", 0, self.connections - 1) if operand.has("via") else LOCAL
            operands.append((via, self._span(operand, "src"), self._span(operand, "dst")))
        self.block.add(
            op,
            operands,
            order=order,
            reduction=_REDUCTIONS[one.text("reduction", tuple(_REDUCTIONS), "call")],
            via_step=steps,
            share=(share[0], share[1]),
        )

    def _span(self, operand: Fields, side: str) -> Span | None:
        if not operand.has(side):
            return None
        span = operand.object(side)
        return Span(
            _BUFFERS[span.text("buffer", tuple(_BUFFERS))],
            span.number("index", -1, _MOST),
            span.number("count", 0, _MOST, 1),
            self._steps(span, "step"),
            span.number("first", -_MOST, _MOST, 0),
            span.number("wrap", 0, _MOST, 0),
        )

    @staticmethod
    def _steps(fields: Fields, name: str) -> tuple[int, ...]:
        values: Sequence[int] = fields.numbers(name, -_MOST, _MOST, [])
        if len(values) > MAX_LOOPS:
            raise fields.wrong(f"has {len(values)} numbers in {name}; loops nest {MAX_LOOPS} deep")
        return tuple(values)
