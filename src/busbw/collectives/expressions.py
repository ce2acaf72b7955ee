"""Integer expressions over rank coordinates, loop variables and sizes: what ranks, chunks, counts and guards are made of.

An expression is a small frozen tree. It is evaluated on plain integers, or on arrays: then for all ranks or all steps at once.
Rank coordinates wrap modulo the size of their axis, chunk indices modulo the size of their buffer, table look-ups modulo the
extents of the table; so `r + 1` is the right neighbour everywhere on a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from busbw.collectives.circulant import received_blocks

__all__ = [
    "OPERATIONS", "Environment", "Expr", "ExprLike", "IntArray", "Table", "Value", "affine", "as_expr", "ceil_log", "circulant_block", "const", "digit", "eq", "evaluate", "floor_log",
    "fold_rank", "free_names", "from_gray", "low_bit", "maximum", "minimum", "ne", "negabinary", "negabinary_digits", "param", "power", "rebuilt", "select", "size", "substitute",
    "table", "unfold_rank", "var",
]  # fmt: skip

IntArray: TypeAlias = NDArray[np.int64]
Value: TypeAlias = "int | IntArray"
ExprLike: TypeAlias = "Expr | int"

_NAMED = ("var", "size", "param", "table")
_NEGABINARY_MASK = 0x2AAAAAAAAAAAAAAA  # the odd binary digits below 2^62, which count negatively in base -2


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """An integer expression: `op` applied to `args`; `value` is the integer of a constant or the name of a variable or table.

    >>> r, p = var("r"), size("r")
    >>> print((r + 1) % p, (r ^ 4), r * 2 - 1)
    (r + 1) % |r| r ^ 4 r * 2 - 1
    """

    op: str
    args: tuple[Expr, ...] = ()
    value: int | str = 0

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Expr) and (self.op, self.value, self.args) == (other.op, other.value, other.args)

    def __hash__(self) -> int:
        return hash((self.op, self.value, self.args))

    def __add__(self, other: ExprLike) -> Expr:
        return _sum(self, as_expr(other))

    def __radd__(self, other: ExprLike) -> Expr:
        return _sum(as_expr(other), self)

    def __sub__(self, other: ExprLike) -> Expr:
        other = as_expr(other)
        if self == other:
            return const(0)
        return _sum(self, const(-int(other.value))) if other.op == "const" else _make("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return as_expr(other) - self

    def __neg__(self) -> Expr:
        return const(0) - self

    def __mul__(self, other: ExprLike) -> Expr:
        other = as_expr(other)
        if ZERO in (self, other):
            return ZERO
        if self == ONE:
            return other
        return self if other == ONE else _make("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return as_expr(other) * self

    def __floordiv__(self, other: ExprLike) -> Expr:
        other = as_expr(other)
        if self == other:  # sizes and powers are never 0
            return ONE
        if self.op == "mul" and self.args[1] == other:
            return self.args[0]
        return self if other == ONE else _make("div", self, other)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return as_expr(other) // self

    def __mod__(self, other: ExprLike) -> Expr:
        return _make("mod", self, as_expr(other))

    def __rmod__(self, other: ExprLike) -> Expr:
        return as_expr(other) % self

    def __xor__(self, other: ExprLike) -> Expr:
        return _make("xor", self, as_expr(other))

    def __rxor__(self, other: ExprLike) -> Expr:
        return as_expr(other) ^ self

    def __and__(self, other: ExprLike) -> Expr:
        other = as_expr(other)
        if self == ONE:  # guards are 0 or 1: "true and x" is x
            return other
        return self if other == ONE else _make("and", self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return _make("or", self, as_expr(other))

    def __invert__(self) -> Expr:
        return _make("eq", self, ZERO)

    def __lt__(self, other: ExprLike) -> Expr:
        return _make("lt", self, as_expr(other))

    def __le__(self, other: ExprLike) -> Expr:
        return _make("le", self, as_expr(other))

    def __gt__(self, other: ExprLike) -> Expr:
        return _make("lt", as_expr(other), self)

    def __ge__(self, other: ExprLike) -> Expr:
        return _make("le", as_expr(other), self)

    def __bool__(self) -> bool:
        if self.op == "const":
            return bool(self.value)
        raise TypeError(
            f"{self} is known only when the schedule runs. Use select(condition, a, b), a guard (when=...), or & and | instead of `and` and `or`"
        )

    def __index__(self) -> int:
        if self.op == "const":
            return int(self.value)
        raise TypeError(f"{self} has no value before the schedule is bound")

    def __str__(self) -> str:
        return _text(self, 0)

    def __repr__(self) -> str:
        return f"Expr({self})"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A constant integer array that expressions look up; equal and hashed by contents.

    >>> Table.of([[1, 2], [3, 4]]).array.shape
    (2, 2)
    """

    array: IntArray

    @staticmethod
    def of(values: Any) -> Table:
        """The table of these values, copied, int64, read-only."""
        array = np.array(values, dtype=np.int64)
        array.setflags(write=False)
        return Table(array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.array.shape, self.array.tobytes()))


@dataclass(frozen=True, slots=True)
class Environment:
    """What names mean: variables (integers or arrays), sizes of axes, parameters, tables."""

    variables: Mapping[str, Value] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    params: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, IntArray] = field(default_factory=dict)

    def having(self, **variables: Value) -> Environment:
        """This environment with more variables."""
        return Environment({**self.variables, **variables}, self.sizes, self.params, self.tables)


def const(value: int) -> Expr:
    """The expression of an integer."""
    return Expr("const", (), int(value))


ZERO = const(0)
ONE = const(1)


def var(name: str) -> Expr:
    """A rank coordinate (by the name of its axis) or a loop variable."""
    return Expr("var", (), name)


def size(axis: str) -> Expr:
    """The size of an axis, known when the schedule is bound."""
    return Expr("size", (), axis)


def param(name: str) -> Expr:
    """A parameter, known when the schedule is bound."""
    return Expr("param", (), name)


def table(name: str, *index: ExprLike) -> Expr:
    """The entry of table `name` at `index`; indices wrap modulo the extents."""
    return Expr("table", tuple(as_expr(i) for i in index), name)


def as_expr(value: ExprLike) -> Expr:
    """The value as an expression."""
    return value if isinstance(value, Expr) else const(value)


def eq(a: ExprLike, b: ExprLike) -> Expr:
    """1 where a equals b, else 0; `==` compares the trees."""
    return _make("eq", as_expr(a), as_expr(b))


def ne(a: ExprLike, b: ExprLike) -> Expr:
    """1 where a differs from b, else 0."""
    return ~eq(a, b)


def select(condition: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """`a` where condition is not 0, else `b`."""
    return _make("select", as_expr(condition), as_expr(a), as_expr(b))


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The smaller one."""
    return _make("min", as_expr(a), as_expr(b))


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The larger one."""
    return _make("max", as_expr(a), as_expr(b))


def power(base: ExprLike, exponent: ExprLike) -> Expr:
    """base^exponent; 0 for a negative exponent."""
    return _make("pow", as_expr(base), as_expr(exponent))


def ceil_log(base: ExprLike, x: ExprLike) -> Expr:
    """The smallest e with base^e >= x.

    >>> [evaluate(ceil_log(2, x), Environment()) for x in (1, 2, 5, 8)]
    [0, 1, 3, 3]
    """
    return _make("ceil_log", as_expr(base), as_expr(x))


def floor_log(base: ExprLike, x: ExprLike) -> Expr:
    """The largest e with base^e <= x.

    >>> [evaluate(floor_log(2, x), Environment()) for x in (1, 2, 5, 8)]
    [0, 1, 2, 3]
    """
    return _make("floor_log", as_expr(base), as_expr(x))


def digit(x: ExprLike, base: ExprLike, place: ExprLike) -> Expr:
    """The digit of x at `place` in this base.

    >>> evaluate(digit(11, 3, 1), Environment())  # 11 is 102 in base 3
    0
    """
    return (as_expr(x) // power(base, place)) % as_expr(base)


def negabinary(digits: ExprLike) -> Expr:
    """The number whose digits in base -2 are the binary digits given.

    >>> [evaluate(negabinary(d), Environment()) for d in range(8)]
    [0, 1, -2, -1, 4, 5, 2, 3]
    """
    return _make("negabinary", as_expr(digits))


def negabinary_digits(x: ExprLike) -> Expr:
    """The digits of x in base -2, as a binary number.

    >>> [evaluate(negabinary_digits(x), Environment()) for x in (0, 1, -2, -1, 4)]
    [0, 1, 2, 3, 4]
    """
    return _make("negabinary_digits", as_expr(x))


def from_gray(code: ExprLike) -> Expr:
    """The number that has this reflected Gray code: bit i of it is the parity of the code's bits from i on.

    >>> [evaluate(from_gray(x), Environment()) for x in range(8)]
    [0, 1, 3, 2, 7, 6, 4, 5]
    """
    return _make("from_gray", as_expr(code))


def low_bit(x: ExprLike) -> Expr:
    """The value of the lowest binary digit of x that is 1; 0 for 0."""
    return _make("low_bit", as_expr(x))


def fold_rank(rank: ExprLike, ranks: ExprLike) -> Expr:
    """The number of this rank among the 2^m that stay active when p ranks fold; -1 for one that sits out.

    Of the first 2 (p - 2^m) ranks the even ones give their data to the next rank and sit out.

    >>> [evaluate(fold_rank(r, 6), Environment()) for r in range(6)]
    [-1, 0, -1, 1, 2, 3]
    """
    return _make("fold", as_expr(rank), as_expr(ranks))


def unfold_rank(name: ExprLike, ranks: ExprLike) -> Expr:
    """The rank that has this number among those that stay active: the inverse of `fold_rank`.

    >>> [evaluate(unfold_rank(v, 6), Environment()) for v in range(4)]
    [1, 3, 4, 5]
    """
    return _make("unfold", as_expr(name), as_expr(ranks))


def circulant_block(rank: ExprLike, turn: ExprLike, ranks: ExprLike) -> Expr:
    """The block, within a turn of ceil(log2 p) rounds, that a rank gets in round `turn` of a broadcast over p ranks from rank 0: `busbw.collectives.circulant`.

    >>> [evaluate(circulant_block(v, 0, 4), Environment()) for v in range(4)]
    [0, 0, -2, -1]
    """
    return _make("circulant", as_expr(rank), as_expr(turn), as_expr(ranks))


def evaluate(expr: Expr, env: Environment) -> Value:
    """The value in this environment: an integer, or an array if a variable is one (arrays broadcast).

    Raises KeyError for a name that the environment doesn't know.

    >>> evaluate((var("r") + 1) % size("r"), Environment({"r": np.arange(4)}, {"r": 4})).tolist()
    [1, 2, 3, 0]
    """
    op = expr.op
    if op == "const":
        return int(expr.value)
    if op in _NAMED:
        name = str(expr.value)
        if op == "var":
            return env.variables[name]
        if op == "size":
            return env.sizes[name]
        if op == "param":
            return env.params[name]
        return _look_up(env.tables[name], [evaluate(arg, env) for arg in expr.args], name)
    return _FUNCTIONS[op](*[evaluate(arg, env) for arg in expr.args])


def substitute(expr: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    """The expression with leaves (variables, sizes, parameters) replaced.

    >>> print(substitute(var("r") + 1, {var("r"): var("node") * 2}))
    node * 2 + 1
    """
    if not expr.args:
        return replacements.get(expr, expr)
    args = tuple([substitute(arg, replacements) for arg in expr.args])
    if args == expr.args:
        return expr
    return rebuilt(expr.op, args, expr.value)


def free_names(expr: Expr, op: str = "var") -> frozenset[str]:
    """The names of the variables (or, by `op`, sizes, parameters or tables) in it."""
    found, left = set(), [expr]
    while left:
        one = left.pop()
        if one.op == op:
            found.add(str(one.value))
        left += one.args
    return frozenset(found)


def affine(expr: Expr, name: str) -> tuple[Expr, Expr] | None:
    """(a, b) with expr = a + b * variable and neither holding the variable; None if it isn't affine in it.

    >>> a, b = affine(var("r") - var("t") * 2 + 1, "t")
    >>> print(a, "|", b)
    r + 1 | -2
    """
    if name not in free_names(expr):
        return expr, ZERO
    if expr.op == "var":
        return ZERO, ONE
    if expr.op in ("add", "sub"):
        left, right = affine(expr.args[0], name), affine(expr.args[1], name)
        if left is None or right is None:
            return None
        return (
            (left[0] + right[0], left[1] + right[1]) if expr.op == "add" else (left[0] - right[0], left[1] - right[1])
        )
    if expr.op == "mul":
        left, right = affine(expr.args[0], name), affine(expr.args[1], name)
        if left is None or right is None:
            return None
        if left[1] == ZERO:
            return left[0] * right[0], left[0] * right[1]
        if right[1] == ZERO:
            return left[0] * right[0], left[1] * right[0]
    return None


def _sum(a: Expr, b: Expr) -> Expr:
    if a == ZERO:
        return b
    if b == ZERO:
        return a
    if b.op == "const" and a.op in ("add", "sub") and a.args[1].op == "const":
        inner = int(a.args[1].value) * (1 if a.op == "add" else -1)
        return _sum(a.args[0], const(inner + int(b.value)))
    if b.op == "const" and int(b.value) < 0 and a.op != "const":
        return Expr("sub", (a, const(-int(b.value))))
    return _make("add", a, b)


def _make(op: str, *args: Expr) -> Expr:
    if all(arg.op == "const" for arg in args) and not (op in ("div", "mod") and args[1].value == 0):
        return const(int(_FUNCTIONS[op](*[int(arg.value) for arg in args])))
    return Expr(op, args)


def rebuilt(op: str, args: tuple[Expr, ...], value: int | str) -> Expr:
    """The same operation on other arguments, simplified as if it had just been written."""
    if op == "table":
        return Expr("table", args, value)
    if op == "add":
        return args[0] + args[1]
    if op == "sub":
        return args[0] - args[1]
    if op == "mul":
        return args[0] * args[1]
    if op == "div":
        return args[0] // args[1]
    if op == "and":
        return args[0] & args[1]
    return _make(op, *args)


def _look_up(array: IntArray, index: list[Value], name: str) -> Value:
    if len(index) != array.ndim:
        raise ValueError(
            f"table {name!r} has {array.ndim} dimensions and is asked for an entry with {len(index)} indices"
        )
    if not array.size:
        raise ValueError(f"table {name!r} has no entries to look up")
    entry = array[tuple(i % extent for i, extent in zip(index, array.shape, strict=True))]
    return entry if isinstance(entry, np.ndarray) else int(entry)


def _is_array(*values: Value) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)


def _truth(value: Any) -> Value:
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)


_BITS = 63
"""What a value may take: beyond, arrays would be wrong in silence, and numbers without end would take all memory."""


def _largest(value: Value) -> int:
    """The largest magnitude among values."""
    if not isinstance(value, np.ndarray):
        return abs(int(value))
    return max(abs(int(value.min())), abs(int(value.max()))) if value.size else 0


def _divisor(b: Value) -> Value:
    """The divisor, if none of it is 0: numpy would go on with 0."""
    if not (b.all() if isinstance(b, np.ndarray) else b):
        raise ValueError("a division by 0 has no value: let the divisor be maximum(..., 1) where it is not meant")
    return b


def _product(a: Value, b: Value) -> Value:
    """The product, if it fits: numpy would go on with what is left of it."""
    if (_largest(a) * _largest(b)) >> (_BITS - 1):
        raise ValueError(f"a product of numbers up to {_largest(a)} and {_largest(b)} has no value in {_BITS} bits")
    return a * b


def _power(base: Value, exponent: Value) -> Value:
    highest = int(np.max(exponent, initial=0)) if isinstance(exponent, np.ndarray) else exponent
    if highest > _BITS and not np.isin(base, (-1, 0, 1)).all():
        raise ValueError(f"a power with an exponent of {highest}, above {_BITS}, has no value here")
    if not _is_array(base, exponent):
        return int(base) ** int(exponent) if exponent >= 0 else 0
    most = _largest(base)
    if most > 1 and (most ** min(max(highest, 0), _BITS)) >> _BITS:
        raise ValueError(f"a power of numbers up to {most} with exponents up to {highest} has no value in {_BITS} bits")
    exponent = np.asarray(exponent)
    return np.where(exponent < 0, 0, np.power(np.asarray(base, np.int64), np.maximum(exponent, 0)))


def _check_log(base: Value, x: Value) -> None:
    least, most = (int(np.min(base)), int(np.max(x, initial=0))) if _is_array(base, x) else (base, x)
    if least < 2:
        raise ValueError(f"a logarithm to base {least} has no value")
    if most >> (_BITS - 1) > 0:
        raise ValueError(f"a logarithm of a number of more than {_BITS - 1} bits has no value here")


def _ceil_log(base: Value, x: Value) -> Value:
    _check_log(base, x)
    if not _is_array(base, x):
        count, reach = 0, 1
        while reach < x:
            reach, count = reach * int(base), count + 1
        return count
    result, reach_array = (
        np.zeros(np.broadcast(base, x).shape, np.int64),
        np.ones(np.broadcast(base, x).shape, np.int64),
    )
    while (less := reach_array < x).any():  # once reach * base is x or more, reach is set to x: the product may not fit
        reach_array = np.where(less, np.where(reach_array > (x - 1) // base, x, reach_array * base), reach_array)
        result = result + less
    return result


def _floor_log(base: Value, x: Value) -> Value:
    _check_log(base, x)
    if not _is_array(base, x):
        count, reach = 0, int(base)
        while reach <= x:
            reach, count = reach * int(base), count + 1
        return count
    result, reach_array = (
        np.zeros(np.broadcast(base, x).shape, np.int64),
        np.broadcast_to(base, np.broadcast(base, x).shape),
    )
    while (fits := reach_array <= x).any():
        reach_array = np.where(fits, np.where(reach_array > x // base, x + 1, reach_array * base), reach_array)
        result = result + fits
    return result


def _spare(ranks: Value) -> Value:
    """The ranks beyond the largest power of two: p - 2^m, m the largest with 2^m <= p."""
    return ranks - _power(2, _floor_log(2, ranks))


def _fold(rank: Value, ranks: Value) -> Value:
    spare = _spare(ranks)
    if not _is_array(rank, ranks):
        return rank - spare if rank >= 2 * spare else (rank // 2 if rank % 2 else -1)
    return np.where(rank >= 2 * spare, rank - spare, np.where(np.asarray(rank) % 2 == 1, np.asarray(rank) // 2, -1))


def _unfold(name: Value, ranks: Value) -> Value:
    spare = _spare(ranks)
    if not _is_array(name, ranks):
        return name + spare if name >= spare else 2 * name + 1
    return np.where(name >= spare, name + spare, 2 * np.asarray(name) + 1)


def _from_gray(code: Value) -> Value:
    for shift in (1, 2, 4, 8, 16, 32):
        code = code ^ (code >> shift)
    return code


def _circulant(rank: Value, turn: Value, ranks: Value) -> Value:
    if not _is_array(rank, turn, ranks):
        blocks = received_blocks(int(ranks))
        return int(blocks[int(turn) % len(blocks), int(rank) % int(ranks)]) if len(blocks) else 0
    found = np.zeros(np.broadcast(rank, turn, ranks).shape, np.int64)
    for many in np.unique(np.asarray(ranks)):
        blocks = received_blocks(int(many))
        if len(blocks):
            found = np.where(np.asarray(ranks) == many, blocks[turn % len(blocks), rank % many], found)
    return found


def _select(condition: Value, a: Value, b: Value) -> Value:
    if not _is_array(condition):
        return a if condition else b
    return np.where(condition, a, b)


def _extreme(scalar: Callable[[Any, Any], Any], array: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    return lambda a, b: array(a, b) if _is_array(a, b) else scalar(a, b)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": _product,
    "div": lambda a, b: a // _divisor(b),
    "mod": lambda a, b: a % _divisor(b),
    "xor": lambda a, b: a ^ b,
    "and": lambda a, b: _truth((a != 0) & (b != 0)) if _is_array(a, b) else int(bool(a) and bool(b)),
    "or": lambda a, b: _truth((a != 0) | (b != 0)) if _is_array(a, b) else int(bool(a) or bool(b)),
    "eq": lambda a, b: _truth(a == b),
    "lt": lambda a, b: _truth(a < b),
    "le": lambda a, b: _truth(a <= b),
    "min": _extreme(min, np.minimum),
    "max": _extreme(max, np.maximum),
    "select": _select,
    "pow": _power,
    "ceil_log": _ceil_log,
    "floor_log": _floor_log,
    "negabinary": lambda d: (d ^ _NEGABINARY_MASK) - _NEGABINARY_MASK,
    "negabinary_digits": lambda x: (x + _NEGABINARY_MASK) ^ _NEGABINARY_MASK,
    "from_gray": _from_gray,
    "low_bit": lambda x: x & -x,
    "fold": _fold,
    "unfold": _unfold,
    "circulant": _circulant,
}

OPERATIONS = dict.fromkeys(("negabinary", "negabinary_digits", "from_gray", "low_bit"), 1) | {
    "select": 3,
    "circulant": 3,
}
OPERATIONS |= {name: 2 for name in _FUNCTIONS if name not in OPERATIONS}
"""The operations and how many arguments each takes."""

_INFIX = {
    "or": ("|", 1), "and": ("&", 2), "eq": ("=", 3), "lt": ("<", 3), "le": ("<=", 3), "add": ("+", 4), "sub": ("-", 4), "xor": ("^", 5),
    "mul": ("*", 6), "div": ("//", 6), "mod": ("%", 6),
}  # fmt: skip


def _text(expr: Expr, outer: int) -> str:
    if expr.op in ("const", "var", "param"):
        return str(expr.value)
    if expr.op == "size":
        return f"|{expr.value}|"
    if expr.op == "table":
        return f"{expr.value}[{', '.join(_text(arg, 0) for arg in expr.args)}]"
    if expr.op in _INFIX:
        sign, level = _INFIX[expr.op]
        if expr.op == "eq" and expr.args[1] == ZERO and expr.args[0].op in ("eq", "lt", "le", "and", "or"):
            return f"not ({_text(expr.args[0], 0)})"
        body = f"{_text(expr.args[0], level)} {sign} {_text(expr.args[1], level + 1)}"
        return f"({body})" if level < outer else body
    return f"{expr.op}({', '.join(_text(arg, 0) for arg in expr.args)})"
