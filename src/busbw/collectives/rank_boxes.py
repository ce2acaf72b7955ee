"""Sets of ranks that a renumbering moves to sets of the same kind: intervals, subcubes, products of intervals. Unions that are none are not decided."""

from __future__ import annotations

from busbw.collectives.symmetries import Group

__all__ = ["boxes_of"]


class _Intervals:
    """Sets of ranks of a rotation along one axis: (first, how many)."""

    one: tuple[int, int] = (0, 1)

    def __init__(self, size: int) -> None:
        self.size = size

    def moved(self, box, g: int):  # type: ignore[no-untyped-def]
        return ((box[0] + g) % self.size, box[1])

    def order(self, g: int) -> int:
        return -g % self.size

    def joined(self, a, b, *, overlap: bool):  # type: ignore[no-untyped-def]
        (x, n), (y, m) = a, b
        size = self.size
        if (x + n - y) % size == 0 and n + m <= size:
            return (x, n + m)
        if (y + m - x) % size == 0 and n + m <= size:
            return (y, n + m)
        if overlap:
            if (y - x) % size <= n:
                return (x, min(size, max(n, (y - x) % size + m)))
            if (x - y) % size <= m:
                return (y, min(size, max(m, (x - y) % size + n)))
        return None

    def overlap(self, a, b) -> bool:  # type: ignore[no-untyped-def]
        return bool((b[0] - a[0]) % self.size < a[1] or (a[0] - b[0]) % self.size < b[1])

    def whole(self, box) -> bool:  # type: ignore[no-untyped-def]
        return bool(box[1] == self.size)


class _Subcubes:
    """Sets of ranks under xor: (one member with the free bits 0, free bits)."""

    one: tuple[int, int] = (0, 0)

    def __init__(self, size: int) -> None:
        self.size = size

    def moved(self, box, g: int):  # type: ignore[no-untyped-def]
        return ((box[0] ^ g) & ~box[1], box[1])

    def order(self, g: int) -> int:
        return g

    def joined(self, a, b, *, overlap: bool):  # type: ignore[no-untyped-def]
        apart = a[0] ^ b[0]
        if a[1] == b[1] and apart and apart & (apart - 1) == 0:
            return (a[0] & ~apart, a[1] | apart)
        return a if overlap and a == b else None

    def overlap(self, a, b) -> bool:  # type: ignore[no-untyped-def]
        return bool((a[0] ^ b[0]) & ~(a[1] | b[1]) == 0)

    def whole(self, box) -> bool:  # type: ignore[no-untyped-def]
        return bool(box[1] == self.size - 1)


class _Products:
    """Sets of ranks of rotations along several axes: an interval along each."""

    def __init__(self, radix: tuple[int, ...]) -> None:
        self.radix = radix
        self.axes = [_Intervals(n) for n in radix]
        self.one = tuple((0, 1) for _ in radix)

    def _digits(self, g: int) -> list[int]:
        digits = []
        for n in reversed(self.radix):
            g, digit = divmod(g, n)
            digits.append(digit)
        return digits[::-1]

    def moved(self, box, g: int):  # type: ignore[no-untyped-def]
        return tuple(axis.moved(part, d) for axis, part, d in zip(self.axes, box, self._digits(g), strict=True))

    def order(self, g: int) -> tuple[int, ...]:
        return tuple(axis.order(d) for axis, d in zip(self.axes, self._digits(g), strict=True))

    def joined(self, a, b, *, overlap: bool):  # type: ignore[no-untyped-def]
        different = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if len(different) != 1:
            return None
        (i,) = different
        part = self.axes[i].joined(a[i], b[i], overlap=overlap)
        return None if part is None else (*a[:i], (0, self.radix[i]) if part[1] == self.radix[i] else part, *a[i + 1 :])

    def overlap(self, a, b) -> bool:  # type: ignore[no-untyped-def]
        return all(axis.overlap(x, y) for axis, x, y in zip(self.axes, a, b, strict=True))

    def whole(self, box) -> bool:  # type: ignore[no-untyped-def]
        return all(axis.whole(part) for axis, part in zip(self.axes, box, strict=True))


def boxes_of(group: Group) -> _Intervals | _Subcubes | _Products:
    """The sets that a group's renumberings keep."""
    if group.name == "xor":
        return _Subcubes(group.order)
    return _Intervals(group.order) if len(group.radix) == 1 else _Products(group.radix)
