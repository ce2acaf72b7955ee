"""Schedules as JSON: small, versioned, the same text for the same schedule.

Expressions: an integer; "r" a variable; "|r|" the size of an axis; "$root" a parameter; ["add", a, b] an operation; ["table", name, i ...] a look-up.
Nodes: {"seq": [...]}, {"par": [...]}, {"for": var, "count": e, "do": node, "parallel": true, "descending": true}, {"pipeline": parts, "do": node},
{"channels": count, "do": node}, {"move": [src, dst], "from": place, ...}. What has its usual value is left out.
"open": tables that bind(counts=...) makes, each with its rule (`counts.COUNT_RULES`).
"""

from __future__ import annotations

import json
from typing import Any

from busbw.collectives.expressions import ONE, OPERATIONS, ZERO, Expr, Table, const, param, size, var
from busbw.collectives.schedule import (
    NO_PATH,
    Channels,
    Location,
    Loop,
    Mode,
    Node,
    Par,
    Pipeline,
    Region,
    Requirement,
    Schedule,
    Seq,
    Transfer,
)

__all__ = ["SCHEMA", "from_json", "looks_like_schedule_json", "to_json"]

SCHEMA = 1
_DEEPEST = 64  # nesting of a document that is read: far beyond what a person writes, far below Python's stack


def to_json(schedule: Schedule) -> str:
    """The schedule as one line of JSON.

    >>> from busbw.collectives.algorithms.ring import ring_all_reduce
    >>> len(to_json(ring_all_reduce())) < 1024, from_json(to_json(ring_all_reduce())) == ring_all_reduce()
    (True, True)
    """
    document = {
        "schema": SCHEMA,
        "name": schedule.name,
        "kind": schedule.kind,
        "axes": list(schedule.axes),
        "chunks": _expr(schedule.chunks),
        "scratch": _expr(schedule.scratch),
        "params": dict(schedule.params),
        "requires": [[_expr(r.condition), r.text] for r in schedule.requires],
        "tables": {name: table.array.tolist() for name, table in schedule.tables},
        "paths": list(schedule.paths),
        "fixed": dict(schedule.fixed),
        "open": dict(schedule.open),
        "body": _node(schedule.body),
    }
    usual: dict[str, Any] = {
        "scratch": 0,
        "params": {},
        "requires": [],
        "tables": {},
        "paths": [],
        "fixed": {},
        "open": {},
    }
    kept = {key: value for key, value in document.items() if key not in usual or value != usual[key]}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False)


def looks_like_schedule_json(value: object) -> bool:
    """Whether a JSON value is meant as a schedule, right or wrong: it has axes and a body."""
    return isinstance(value, dict) and "axes" in value and "body" in value


def from_json(text: str) -> Schedule:
    """The schedule that `to_json` wrote.

    Raises ValueError, with the part that is wrong, for any other text.
    """
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"this is no JSON: {error}") from None
    document = _object(document, "a schedule")
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema {document.get('schema')!r} of a schedule is not known; this version reads {SCHEMA}")
    try:
        return Schedule(
            name=_text(document["name"]),
            kind=_text(document["kind"]),
            axes=tuple(_text(axis) for axis in document["axes"]),
            chunks=_read_expr(document["chunks"]),
            scratch=_read_expr(document.get("scratch", 0)),
            body=_read_node(document["body"], 0),
            params=tuple(
                (_text(name), None if value is None else _integer(value))
                for name, value in _object(document.get("params", {}), "params").items()
            ),
            requires=tuple(
                Requirement(_read_expr(condition), _text(said)) for condition, said in document.get("requires", [])
            ),
            tables=tuple(
                (name, Table.of(rows)) for name, rows in _object(document.get("tables", {}), "tables").items()
            ),
            paths=tuple(_text(path) for path in document.get("paths", [])),
            fixed=tuple((name, _integer(n)) for name, n in _object(document.get("fixed", {}), "fixed").items()),
            open=tuple((name, _text(rule)) for name, rule in _object(document.get("open", {}), "open").items()),
        )
    except KeyError as missing:
        raise ValueError(f"a part of the schedule lacks {missing}") from None
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a part of the schedule has the wrong shape: {error}") from None


def _expr(expr: Expr) -> Any:
    if expr.op == "const":
        return int(expr.value)
    if expr.op == "var":
        return str(expr.value)
    if expr.op == "size":
        return f"|{expr.value}|"
    if expr.op == "param":
        return f"${expr.value}"
    named = [expr.value] if expr.op == "table" else []
    return [expr.op, *named, *(_expr(arg) for arg in expr.args)]


def _read_expr(value: Any, depth: int = 0) -> Expr:
    if depth > _DEEPEST:
        raise ValueError(f"an expression is nested more than {_DEEPEST} deep")
    if isinstance(value, bool) or value is None:
        raise ValueError(f"{value!r} is no expression")
    if isinstance(value, int):
        return const(value)
    if isinstance(value, str):
        if value.startswith("|") and value.endswith("|") and len(value) > 2:
            return size(value[1:-1])
        return param(value[1:]) if value.startswith("$") else var(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        op, *args = value
        if op == "table" and args:
            return Expr("table", tuple(_read_expr(arg, depth + 1) for arg in args[1:]), _text(args[0]))
        if OPERATIONS.get(op) == len(args):
            return Expr(op, tuple(_read_expr(arg, depth + 1) for arg in args))
    raise ValueError(f"{str(value)[:80]} is no expression")


def _place(place: Location) -> list[Any]:
    rest = [place.count, place.stride]
    while rest and rest[-1] == ONE:
        rest.pop()
    return [str(place.region), _expr(place.index), *(_expr(e) for e in rest)]


def _read_place(value: Any) -> Location:
    if not isinstance(value, list) or not 2 <= len(value) <= 4:
        raise ValueError(f"{str(value)[:80]} is no place: [region, index, count, stride]")
    region, *numbers = value
    return Location(Region(region), *(_read_expr(e) for e in numbers))


def _node(node: Node) -> dict[str, Any]:
    if isinstance(node, Seq | Par):
        return {"seq" if isinstance(node, Seq) else "par": [_node(child) for child in node.children]}
    if isinstance(node, Loop):
        flags = {name: True for name in ("parallel", "descending") if getattr(node, name)}
        return {"for": node.var, "count": _expr(node.count), **flags, "do": _node(node.body)}
    if isinstance(node, Pipeline):
        return {"pipeline": _expr(node.parts), "do": _node(node.body)}
    if isinstance(node, Channels):
        return {"channels": _expr(node.count), "do": _node(node.body)}
    found: dict[str, Any] = {
        "move": [[_expr(e) for e in node.src], [_expr(e) for e in node.dst]],
        "from": _place(node.source),
    }
    if node.target != node.source:
        found["to"] = _place(node.target)
    if node.mode is not Mode.COPY:
        found["mode"] = str(node.mode)
    if node.group:
        found["over"] = list(node.group)
    for name, usual in (("guard", ONE), ("channel", ZERO), ("path", NO_PATH), ("hops", ONE)):
        if getattr(node, name) != usual:
            found[name] = _expr(getattr(node, name))
    if node.where:
        found["where"] = node.where
    return found


def _read_node(value: Any, depth: int) -> Node:
    if depth > _DEEPEST:
        raise ValueError(f"nodes are nested more than {_DEEPEST} deep")
    node = _object(value, "a node")
    for word, made in (("seq", Seq), ("par", Par)):
        if word in node:
            return made(tuple(_read_node(child, depth + 1) for child in node[word]))
    if "for" in node:
        return Loop(
            _text(node["for"]),
            _read_expr(node["count"]),
            _read_node(node["do"], depth + 1),
            parallel=node.get("parallel") is True,
            descending=node.get("descending") is True,
        )
    if "pipeline" in node:
        return Pipeline(_read_expr(node["pipeline"]), _read_node(node["do"], depth + 1))
    if "channels" in node:
        return Channels(_read_expr(node["channels"]), _read_node(node["do"], depth + 1))
    src, dst = node["move"]
    source = _read_place(node["from"])
    return Transfer(
        tuple(_read_expr(e) for e in src),
        tuple(_read_expr(e) for e in dst),
        source,
        _read_place(node["to"]) if "to" in node else source,
        Mode(node.get("mode", "copy")),
        tuple(_text(axis) for axis in node.get("over", [])),
        guard=_read_expr(node.get("guard", 1)),
        channel=_read_expr(node.get("channel", 0)),
        path=_read_expr(node.get("path", -1)),
        hops=_read_expr(node.get("hops", 1)),
        where=_text(node.get("where", "")),
    )


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, not {str(value)[:80]}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:80]} must be a text")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{str(value)[:80]} must be an integer")
    return value
