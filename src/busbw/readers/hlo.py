"""XLA's HLO text, as `XLA_FLAGS=--xla_dump_to=DIR` leaves it (`*after_optimizations.txt`): the collectives that a compiled program of JAX or TensorFlow runs.

    HloModule jit_step, is_scheduled=true, ..., replica_count=1, num_partitions=8
    %ag.7 = bf16[4096,512]{1,0} all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true
    %ar = (f32[8]{0}, f32[8]{0}) all-reduce-start(%a, %b), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add

Groups are listed, in iota form ([groups,size]<=[dims]T(order): numbers from 0 on, reshaped, transposed, cut into rows), or a mesh with the axes to reduce over. Which devices the
numbers mean depends on channel_id and use_global_device_ids. An instruction stands once, however often a loop runs it. `-start` has the bytes, `-done` none.
Sources: XLA, docs/operation_semantics.md, xla/hlo/parser/hlo_parser.cc, xla/service/collective_ops_utils.h (modes of groups); dumps of jax 0.4 to 0.10.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item

__all__ = ["READER", "HloReader", "Instruction", "Module", "device_groups", "is_hlo", "parse_module"]

LARGEST_FILE_BYTES = 1 << 30
_LONGEST_LINE = 1 << 22
_MOST_DEVICES = 1 << 20
_MOST_INSTRUCTIONS = 1_000_000
_MOST_MEMBERS = 4096
"""Of a group, that a row lists."""
_BATCH_ROWS = 1024
_LONGEST_BROKEN = 1 << 16
"""Of an instruction that stands on several lines."""
_HEAD = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*(?://[^\n]*\n\s*)*HloModule\s+[^\s,]+")
_COUNT = re.compile(r"\b(replica_count|num_partitions)=(\d{1,7})")
_COMPUTATION = re.compile(r"\s*(ENTRY\s+)?%?([\w.\-]+)\s*(?=[({])")
_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_SHAPE = re.compile(r"\b(pred|token|opaque|[suf]\d{1,3}(?:e\d{1,2}m\d{1,2}\w{0,8})?|bf16|c64|c128)\[([\d,<=? ]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(?:body|condition|to_apply|calls|branch_computations|true_computation|false_computation)=(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_TRIPS = re.compile(r'known_trip_count\\?"?\s*[:=]\s*\{\s*\\?"?n\\?"?\s*:\s*\\?"?(\d{1,9})')
_LISTED = re.compile(r"replica_groups=(\{(?:\{[\d,\s]*\},?\s*)*\})")
_IOTA = re.compile(r"replica_groups=\[(\d{1,9}),(\d{1,9})\]<=\[([\d,]{1,200})\](?:T\(([\d,]{1,100})\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]{0,1000})\]\s*\{([^}]{0,1000})\}")
_AXIS = re.compile(r"'([^']{0,100})'=(\d{1,7})")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d{1,7},\d{1,7}\},?\s*)*)\}")
_CHANNEL = re.compile(r"\bchannel_id=(\d{1,12})")
_OPS = {
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter", "all-to-all": "all_to_all", "ragged-all-to-all": "all_to_all_v",
    "collective-permute": "send_recv", "collective-broadcast": "broadcast",
}  # fmt: skip
"""Opcodes, without -start: our names."""
_NARROW = {
    "s4": 4,
    "u4": 4,
    "s2": 2,
    "u2": 2,
    "pred": 8,
    "bf16": 16,
    "c64": 64,
    "c128": 128,
    "token": 0,
    "opaque": 0,
    "f4e2m1fn": 4,
}
"""Bits of an element where the name does not begin with a letter and their number."""
_DTYPES = {"f32": "float", "f64": "double", "f16": "half", "bf16": "bfloat16", "pred": "uint8", "f8e4m3fn": "f8e4m3", "f8e5m2": "f8e5m2", **{f"s{n}": f"int{n}" for n in (8, 16, 32, 64)}, **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)}}  # fmt: skip

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    attributes: str
    """As written; empty but for collectives, loops and branches."""
    line: int
    byte_offset: int
    is_root: bool

    @property
    def collective(self) -> str | None:
        """Our name of what it begins or does as a whole; None for all else, `-done` too."""
        return _OPS.get(self.opcode.removesuffix("-start"))

    @property
    def trips(self) -> int | None:
        """How often a loop runs, where the compiler knew it."""
        found = _TRIPS.search(self.attributes)
        return int(found[1]) if found else None


@dataclass(slots=True)
class Module:
    """A program: its computations, which all devices run."""

    path: str
    replicas: int = 1
    partitions: int = 1
    entry: str | None = None
    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    _groups: dict[tuple[str, bool, bool], Groups | None] = field(default_factory=dict)
    """By what is written: a program has few groups, and says them often."""

    @property
    def devices(self) -> int:
        """Replicas times partitions."""
        return self.replicas * self.partitions

    def size_bytes(self, instruction: Instruction, ranks: int) -> int | None:
        """The larger of a device's buffers; None where a shape is not static."""
        elements = _top(instruction.shape)
        if instruction.opcode.endswith("-start"):
            # (what goes in, what comes out, context ...); all-reduce-start has what comes out alone.
            moved = [
                element for element in elements if not re.fullmatch(r"(?:[su]\d+|token)\[\](?:\{[^}]*\})?", element)
            ]
            if instruction.opcode != "all-reduce-start" and len(moved) > 1:
                elements = [moved[1]]
        sizes = [_bytes(element) for element in elements]
        if any(size is None for size in sizes):
            return None
        total = sum(size or 0 for size in sizes)
        return total * ranks if instruction.collective == "reduce_scatter" else total

    def groups(self, instruction: Instruction) -> Groups | None:
        """Devices that talk to each other; None where the form is not known."""
        found = re.search(r"replica_groups=\S*(?: \{[^}]*\})?", instruction.attributes)
        key = (
            found[0] if found else "",
            "channel_id=" in instruction.attributes,
            "use_global_device_ids=true" in instruction.attributes,
        )
        if key not in self._groups:
            self._groups[key] = device_groups(instruction.attributes, self.replicas, self.partitions)
        return self._groups[key]

    def pairs(self, instruction: Instruction) -> tuple[tuple[int, int], ...] | None:
        """(source, target) devices of a permutation."""
        found = _PAIRS.search(instruction.attributes)
        if found is None:
            return None
        numbers = [int(n) for n in re.findall(r"\d+", found[1])]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        cross_partition = _CHANNEL.search(instruction.attributes) is not None
        if self.replicas > 1 and self.partitions > 1:
            if len(pairs) * max(self.replicas, self.partitions) > _MOST_DEVICES:
                return None
            # Numbers are partitions of each replica, or, without a channel, replicas of each partition.
            pairs = [
                (replica * self.partitions + source, replica * self.partitions + target)
                if cross_partition
                else (source * self.partitions + replica, target * self.partitions + replica)
                for replica in range(self.replicas if cross_partition else self.partitions)
                for source, target in pairs
            ]
        return tuple(pairs) if all(max(pair) < self.devices for pair in pairs) else None


class HloReader:
    """HLO text of XLA."""

    name = "xla-hlo"

    def sniff(self, head: bytes) -> bool:
        """By its first word."""
        return is_hlo(head)

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Rows of `collectives`, one an instruction."""
        losses = Losses(artefact.path)
        if artefact.size_bytes > LARGEST_FILE_BYTES:
            losses.add(
                "too-large",
                None,
                f"larger than {LARGEST_FILE_BYTES >> 30} GiB; dump one module, without large constants",
            )
            yield from losses
            return
        module = parse_module(b"".join(artefact.chunks()), artefact.path, losses)
        every = (
            one for instructions in module.computations.values() for one in instructions if one.collective is not None
        )
        while batch := list(itertools.islice(every, _BATCH_ROWS)):
            yield rows_of("collectives", [{"artefact": artefact.sha256} | _row(module, one, losses) for one in batch])
        if module.entry is None:
            losses.add("truncated-file", None, "the module has no ENTRY computation; the dump is cut")
        yield from losses


READER = HloReader()


def is_hlo(content: bytes) -> bool:
    """Whether a file, or its head, is HLO text."""
    return _HEAD.match(content) is not None


def _row(module: Module, instruction: Instruction, losses: Losses) -> dict[str, Any]:
    op = instruction.collective
    groups: Groups | None
    if op == "send_recv":
        pairs = module.pairs(instruction)
        groups = (tuple(sorted({device for pair in pairs for device in pair})),) if pairs else None
    else:
        groups = module.groups(instruction)
    if groups is None:
        losses.add(
            "unknown-groups",
            instruction.line,
            f"groups of {instruction.opcode} in a form that is not known, or with devices that the module has not; they are unknown",
        )
    ranks = max(map(len, groups)) if groups else None
    size = module.size_bytes(instruction, ranks) if ranks is not None else None
    dtype = _SHAPE.search(instruction.shape)
    written = re.search(r"(?:replica_groups|source_target_pairs)=(\S*(?: \{[^}]*\})?)", instruction.attributes)
    return {
        "line": instruction.line, "byte_offset": instruction.byte_offset, "source": "xla-hlo", "process_group": written[1].rstrip(",")[:200] if written else None,
        "group_desc": None if groups is None else f"{len(groups)} group{'s' if len(groups) > 1 else ''} of {ranks}", "ranks": ranks, "members": list(groups[0]) if groups and len(groups[0]) <= _MOST_MEMBERS else None, "op": op,
        "profiling_name": instruction.name[:200], "is_p2p": op == "send_recv", "size_bytes": size, "dtype": _DTYPES.get(dtype[1], dtype[1]) if dtype else None,
    }  # fmt: skip


def parse_module(content: bytes, path: str, losses: Losses) -> Module:
    """The module of a dump. What is damaged is counted."""
    module = Module(path)
    current: list[Instruction] | None = None
    offset = count = 0
    begun_module = False
    waiting, begun = "", (0, 0)
    for number, raw in enumerate(content.split(b"\n"), start=1):
        here, offset = offset, offset + len(raw) + 1
        if len(raw) > _LONGEST_LINE:
            losses.add("too-large", number, "a line of more than 4 MiB, a constant or damage, was left out")
            continue
        text = raw.decode("utf-8", "replace").rstrip().removeprefix("\ufeff")
        if waiting:
            text, (number_of, here) = f"{waiting} {text.strip()}", begun
        else:
            number_of = number
        # An instruction that goes on: dumps write one a line, people break them.
        if text.endswith(",") and len(text) < _LONGEST_BROKEN and not text.startswith("HloModule"):
            waiting, begun = text, (number_of, here)
            continue
        waiting = ""
        if text.lstrip().startswith("HloModule"):
            if begun_module:
                losses.add(
                    "several-modules",
                    number,
                    "the file has more modules than one; the first is read. Give each dump a file of its own",
                )
                break
            begun_module = True
            for name, value in _COUNT.findall(text):
                if name == "replica_count":
                    module.replicas = max(1, int(value))
                else:
                    module.partitions = max(1, int(value))
            if module.devices > _MOST_DEVICES:
                losses.add("damaged-row", number, f"{module.devices:,} devices are no module that runs; one is assumed")
                module.replicas = module.partitions = 1
            continue
        opened = _COMPUTATION.match(text) if text.endswith("{") else None
        if opened is not None:
            current = module.computations.setdefault(opened[2], [])
            if opened[1]:
                module.entry = opened[2]
        elif text.strip() == "}":
            current = None
        elif current is not None and "=" in text:
            count += 1
            if count > _MOST_INSTRUCTIONS:
                losses.add(
                    "too-large", number_of, f"instructions beyond the first {_MOST_INSTRUCTIONS:,} were left out"
                )
                continue
            made = _instruction(text, number_of, here)
            if made is not None:
                current.append(made)
            elif re.search(r"\b(?:all|reduce|collective)-", text):
                losses.add(
                    "damaged-row",
                    number_of,
                    "an instruction that cannot be read was left out; the dump is cut or of a version not known",
                )
    return module


def _instruction(text: str, line: int, offset: int) -> Instruction | None:
    head = _INSTRUCTION.match(text)
    if head is None:
        return None
    begin = head.end()
    end = _closed(text, begin) if text[begin : begin + 1] == "(" else text.find(" ", begin)
    opcode = _OPCODE.match(text, end) if end > 0 else None
    if opcode is None:
        return None
    after = _closed(text, opcode.end() - 1)
    if after < 0:
        return None
    name, rest = opcode[1], text[after:]
    called = tuple(
        itertools.chain.from_iterable(
            _OPERAND.findall(listed) or re.findall(r"[\w.\-]+", listed) if listed else [one]
            for listed, one in _CALLED.findall(rest)
        )
    )
    wanted = name.removesuffix("-start") in _OPS or name == "while"
    return Instruction(
        head[2],
        name,
        text[begin:end],
        tuple(_operands(text[opcode.end() : after - 1])),
        called,
        rest if wanted else "",
        line,
        offset,
        head[1] is not None,
    )


def _operands(text: str) -> list[str]:
    """Names of operands: %name, or in newer dumps the bare name, after its shape where that is written."""
    named = _OPERAND.findall(text)
    return named or [words[-1] for part in _split(text) if (words := re.findall(r"[\w.\-]+", part.rpartition(" ")[2]))]


def _closed(text: str, begin: int) -> int:
    """Behind the bracket that closes the one at begin; -1: none does."""
    depth = 0
    for found in re.compile(r"[()]").finditer(text, begin):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return found.end()
    return -1


def _split(text: str) -> list[str]:
    """Parts between commas that no bracket holds."""
    parts, depth, last = [], 0, 0
    for found in re.finditer(r"[()\[\]{},]", text):
        if found[0] == ",":
            if depth == 0:
                parts.append(text[last : found.start()].strip())
                last = found.end()
        else:
            depth += 1 if found[0] in "([{" else -1
    return [*parts, text[last:].strip()] if text.strip() else []


def _top(shape: str) -> list[str]:
    """The elements of a tuple, or the shape itself; comments (/*index=5*/) left out."""
    plain = re.sub(r"/\*.*?\*/", "", shape.strip())
    return _split(plain[1:-1]) if plain.startswith("(") else [plain]


def _bytes(shape: str) -> int | None:
    """Bytes of all arrays in a shape; None where one is not static, or of a type that is not known."""
    total = 0
    if "[" in _SHAPE.sub("", shape):
        return None
    for dtype, dims in _SHAPE.findall(shape):
        if "<" in dims or "?" in dims or any(len(dim) > 18 for dim in dims.split(",")):
            return None
        bits = _NARROW.get(dtype) if dtype in _NARROW else int(re.match(r"[suf](\d+)", dtype)[1])  # type: ignore[index]
        count = math.prod(int(dim) for dim in dims.split(",") if dim.strip())
        if count >= 1 << 55:
            return None
        total += -(-count * (bits or 0) // 8)
    return total


def device_groups(attributes: str, replicas: int, partitions: int) -> Groups | None:
    """The groups of devices, as XLA means them; None for a form that is not known or for numbers beyond the devices.

    Device d is partition d % partitions of replica d // partitions. With use_global_device_ids numbers are devices; with a channel alone, replicas with all their partitions; without,
    replicas, for each partition. A module of one replica numbers its partitions in all-to-all and the like.

    >>> device_groups("replica_groups=[4,2]<=[2,4]T(1,0), channel_id=1, use_global_device_ids=true", 1, 8)
    ((0, 4), (1, 5), (2, 6), (3, 7))
    >>> device_groups("replica_groups={}, channel_id=1", 1, 4)
    ((0, 1, 2, 3),)
    """
    listed = _listed(attributes)
    if listed is None:
        return None
    channel, globally = _CHANNEL.search(attributes) is not None, "use_global_device_ids=true" in attributes
    devices = replicas * partitions
    if globally or not channel or replicas == 1:
        everyone = devices if globally or replicas == 1 else replicas
        groups = listed or (tuple(range(everyone)),)
        if (
            channel
            and not globally
            and replicas == 1
            and all(max(group) == 0 for group in groups if group)
            and partitions > 1
        ):
            groups = (tuple(range(partitions)),)  # the one replica, with all its partitions
        if not globally and not channel and replicas > 1:
            groups = tuple(tuple(r * partitions + p for r in group) for p in range(partitions) for group in groups)
    else:
        groups = tuple(
            tuple(r * partitions + p for r in group for p in range(partitions))
            for group in listed or (tuple(range(replicas)),)
        )
    good = all(
        group and min(group) >= 0 and max(group) < max(devices, 1) and len(set(group)) == len(group) for group in groups
    )
    return groups if good else None


def _listed(attributes: str) -> Groups | None:
    """The groups as written; empty for `{}`, which means everyone."""
    iota = _IOTA.search(attributes)
    if iota is not None:
        number, size = int(iota[1]), int(iota[2])
        dims = [int(dim) for dim in iota[3].split(",") if dim]
        order = [int(axis) for axis in iota[4].split(",") if axis] if iota[4] else list(range(len(dims)))
        if (
            not dims
            or min(dims) < 1
            or number * size != math.prod(dims)
            or number * size > _MOST_DEVICES
            or sorted(order) != list(range(len(dims)))
        ):
            return None
        flat = _transposed(dims, order)
        return tuple(tuple(flat[at : at + size]) for at in range(0, len(flat), size)) if size else None
    mesh = _MESH.search(attributes)
    if mesh is not None:
        axes = [(name, int(extent)) for name, extent in _AXIS.findall(mesh[1])]
        over = re.findall(r"'([^']*)'", mesh[2])
        extents = [extent for _, extent in axes]
        names = [name for name, _ in axes]
        if not axes or math.prod(extents) > _MOST_DEVICES or not math.prod(extents) or not set(over) <= set(names):
            return None
        order = [at for at, name in enumerate(names) if name not in over] + [names.index(name) for name in over]
        flat, size = _transposed(extents, order), math.prod(extents[names.index(name)] for name in over)
        return tuple(tuple(flat[at : at + size]) for at in range(0, len(flat), size))
    found = _LISTED.search(attributes)
    if found is not None:
        groups = tuple(
            tuple(int(n) for n in inner.split(",") if n.strip()) for inner in re.findall(r"\{([\d,\s]+)\}", found[1])
        )
        return groups if sum(map(len, groups)) <= _MOST_DEVICES else None
    return () if "replica_groups=" not in attributes else None


def _transposed(dims: Sequence[int], order: Sequence[int]) -> list[int]:
    """Numbers from 0 on, laid out as dims, axes in another order, in a row.

    >>> _transposed([2, 3], [1, 0])
    [0, 3, 1, 4, 2, 5]
    """
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    return [
        sum(place * strides[axis] for place, axis in zip(places, order, strict=True))
        for places in itertools.product(*(range(dims[axis]) for axis in order))
    ]
