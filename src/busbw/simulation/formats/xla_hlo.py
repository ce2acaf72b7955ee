"""XLA's HLO text as a task graph: the collectives of a compiled program on all its devices, in the order that data demands.

Every device runs the same program. A collective comes after those whose results it needs, through whatever lies between; loops are unrolled as often as the compiler says they
run, a loop's values taken as one; of branches the first that communicates is taken. Text says nothing of times: computation takes none, so what comes out is the communication alone, and its
critical path. The module is parsed by `busbw.readers.hlo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from busbw.errors import InputError, Losses
from busbw.readers.hlo import Instruction, Module, is_hlo, parse_module
from busbw.simulation.formats.building import ALGORITHMS, GraphBuilder
from busbw.simulation.graph import TaskGraph

__all__ = ["is_hlo", "read_hlo"]

_MOST_CALLS = 200_000
"""Collectives after loops are unrolled."""
_MOST_STEPS = 20_000_000
"""Instructions looked at on the way."""
_DEEPEST = 64
"""Computations that call each other."""
_MOST_NEEDED = 8
"""Calls that a value needs; where it needs more, all devices join first, or edges would grow with the square of the calls."""


def read_hlo(content: bytes, path: str, losses: Losses, *, ranks: int | None = None) -> TaskGraph:
    """The graph of a module's collectives. ranks: as many as the module's devices, if given. Raises InputError for a module without collectives, and for one that is cut."""
    module = parse_module(content, path, losses)
    if module.entry is None:
        raise InputError(
            f"{path}: the module has no ENTRY computation. Give the whole dump, such as ...after_optimizations.txt."
        )
    if ranks is not None and ranks != module.devices:
        raise InputError(
            f"{path}: the module is compiled for {module.devices} devices, not {ranks}. Leave --ranks out."
        )
    program = _Program(module, losses)
    if program.communicates(module.entry, 0):
        program.run(module.entry, _NOTHING, 0)
    if not program.calls:
        raise InputError(
            f"{path}: no collective in this module of {module.devices} devices. Give the dump after optimizations of a program that is sharded."
        )
    losses.add(
        "no-compute-times",
        None,
        "HLO text says no times, so computation takes none: what is simulated is communication alone",
    )
    builder = GraphBuilder(module.devices, path)
    done: list[dict[int, int]] = []
    for call in program.calls:
        done.append(_built(builder, module, call, done, losses))
    return builder.graph()


@dataclass(frozen=True, slots=True)
class _Call:
    instruction: Instruction | None
    """None: a device goes on when all before it are done."""
    after: frozenset[int]
    """Calls whose results it needs."""


_NOTHING: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Program:
    """The calls in the order in which they can be made."""

    module: Module
    losses: Losses
    calls: list[_Call] = field(default_factory=list)
    _made: int = 0
    _steps: int = 0
    _communicates: dict[str, bool] = field(default_factory=dict)
    _joined: dict[frozenset[int], frozenset[int]] = field(default_factory=dict)

    def run(self, computation: str, given: frozenset[int], depth: int) -> frozenset[int]:
        """What the result of a computation needs, if its parameters need `given`."""
        needs: dict[str, frozenset[int]] = {}
        result = given
        for instruction in self.module.computations.get(computation, ()):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise InputError(
                    f"{self.module.path}: loops of more than {_MOST_STEPS:,} instructions. Dump one step of the program."
                )
            need = self._all_of(
                given if instruction.opcode == "parameter" else _NOTHING,
                *(needs.get(operand, _NOTHING) for operand in instruction.operands),
            )
            if instruction.collective is not None:
                need = self._call(instruction, need)
            elif instruction.opcode == "while":
                need = self._loop(instruction, need, depth)
            elif instruction.called:
                for inside in instruction.called:
                    if self.communicates(inside, 0):
                        need = self._all_of(need, self.run(inside, need, depth + 1))
                        if instruction.opcode == "conditional":
                            self.losses.add(
                                "branch-taken", instruction.line, "of branches the first that communicates was taken"
                            )
                            break
            needs[instruction.name] = need
            result = need if instruction.is_root else result
        return result

    def _all_of(self, *needs: frozenset[int]) -> frozenset[int]:
        """What values need together, without what others of them come after anyway."""
        different = {need for need in needs if need}
        if len(different) < 2:
            return next(iter(different), _NOTHING)
        need = frozenset().union(*different)
        need -= _NOTHING.union(*(self.calls[each].after for each in need))
        if len(need) <= _MOST_NEEDED:
            return need
        if need not in self._joined:
            self.calls.append(_Call(None, need))
            self._joined[need] = frozenset((len(self.calls) - 1,))
        return self._joined[need]

    def _loop(self, instruction: Instruction, need: frozenset[int], depth: int) -> frozenset[int]:
        inside = [name for name in instruction.called if self.communicates(name, 0)]
        trips = instruction.trips
        if inside and trips is None:
            self.losses.add(
                "unknown-trip-count",
                instruction.line,
                "how often a loop with collectives runs is not known; once is assumed",
            )
        for _ in range(trips if trips is not None else 1):
            if not inside:
                break
            for name in inside:
                need = self._all_of(need, self.run(name, need, depth + 1))
        return need

    def _call(self, instruction: Instruction, need: frozenset[int]) -> frozenset[int]:
        self._made += 1
        if self._made > _MOST_CALLS:
            raise InputError(
                f"{self.module.path}: more than {_MOST_CALLS:,} collectives once loops are unrolled. Dump one step of the program."
            )
        self.calls.append(_Call(instruction, need))
        return frozenset((len(self.calls) - 1,))

    def communicates(self, computation: str, depth: int) -> bool:
        """Whether there is a collective in it, or in what it calls."""
        known = self._communicates.get(computation)
        if known is None:
            if depth > _DEEPEST:
                raise InputError(
                    f"{self.module.path}: computations call each other {_DEEPEST} deep, or in a circle: the dump is damaged."
                )
            # All are looked at, also those after the first that communicates: a circle anywhere ends the reading here, not in `run`.
            inside = [
                each.collective is not None or any([self.communicates(name, depth + 1) for name in each.called])  # noqa: C419
                for each in self.module.computations.get(computation, ())
            ]
            known = self._communicates[computation] = any(inside)
        return known


def _built(
    builder: GraphBuilder, module: Module, call: _Call, done: Sequence[dict[int, int]], losses: Losses
) -> dict[int, int]:
    """The tasks of one call; by device the task that ends it."""
    instruction = call.instruction
    if instruction is None:
        return {
            device: builder.compute(device, "join", 0, sorted(done[earlier][device] for earlier in call.after))
            for device in range(module.devices)
        }
    kind = instruction.collective or ""
    pairs = module.pairs(instruction) if kind == "send_recv" else None
    groups = module.groups(instruction) if kind != "send_recv" else None
    left: dict[int, int] = {}

    def entered(device: int) -> int:
        return builder.compute(
            device, f"{instruction.name} begins", 0, sorted(done[earlier][device] for earlier in call.after)
        )

    if pairs is not None:
        size = module.size_bytes(instruction, 1) or 1
        comes = {device: entered(device) for device in range(module.devices)}
        ends: dict[int, list[int]] = {device: [task] for device, task in comes.items()}
        for source, target in pairs:
            if source == target:
                continue
            sent = builder.send(source, instruction.name, target, size, [comes[source]])
            received = builder.receive(target, instruction.name, size, [comes[target]])
            builder.matched(received, sent)
            ends[source].append(sent)
            ends[target].append(received)
        return {device: builder.compute(device, instruction.name, 0, after) for device, after in ends.items()}
    size_bytes = module.size_bytes(instruction, max(map(len, groups))) if groups else None
    simulated = "all_to_all" if kind == "all_to_all_v" else kind
    if groups is None or size_bytes is None or simulated not in ALGORITHMS:
        losses.add(
            "collective-not-simulated",
            instruction.line,
            f"{instruction.opcode}: its groups or its size are not known; it takes no time",
        )
        groups = ()
    if kind == "all_to_all_v":
        losses.add(
            "uneven-sizes",
            instruction.line,
            "ragged-all-to-all says only how much room there is: it is simulated full and even",
        )
    for members in groups:
        comes = {device: entered(device) for device in members}
        goes = {device: builder.compute(device, instruction.name, 0) for device in members}
        builder.collective(simulated, members, size_bytes or 1, name=instruction.name, entered=comes, left=goes)
        left |= goes
    # Devices in no group go on.
    return left | {device: entered(device) for device in range(module.devices) if device not in left}
