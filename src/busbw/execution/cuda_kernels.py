"""The kernels that run on GPUs: which function of the device headers each is, with which arguments; and the source that makes it one.

A new kernel is a line of `KERNELS`. Everything that lists kernels, compiles them or checks their machine code goes by that table.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = [
    "DIVIDE",
    "KERNELS",
    "MOST_RANKS",
    "MOST_THREADS",
    "PACKET_FORMS",
    "Comm",
    "Entry",
    "Kernel",
    "Layout",
    "Window",
    "argument_bytes",
    "as_window",
    "divide_bytes",
    "every_entry",
    "layout_bytes",
    "source_of",
]

MOST_RANKS = 64
"""kMostRanks of window.hpp."""
PACKET_FORMS = ("LL", "LL128")
"""Form of packet.hpp, but for plain memory."""
MOST_THREADS = 512
"""Of a block: as NCCL's symmetric kernels and vLLM's all_reduce have it (NVIDIA/nccl 2.30.7, src/sym_kernels.cc; vLLM, custom_all_reduce.cuh)."""
LINE_BYTES = 64
"""Layout::kLine of comm.hpp."""
REPORT = struct.Struct("<IIIIQQ")
"""Report of wait.hpp: state, primitive, block, peer, expected, seen."""

TYPES = {
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
}
"""C++ types of the elements that kernels reduce."""
WORDS = {8: "uint64", 4: "uint32", 2: "uint16", 1: "uint8"}
"""What kernels that only move have as elements: the widest that all sizes and places are multiples of."""
_WORD_TYPES = {
    "uint64": "unsigned long long",
    "uint32": "unsigned int",
    "uint16": "unsigned short",
    "uint8": "unsigned char",
}
OPERATIONS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max"}

_DECLARED = {
    "in": ("const T* in",),
    "out": ("T* out",),
    "window in": ("const __grid_constant__ Window data", "std::size_t in_offset"),
    "window out": ("std::size_t out_offset",),
    "only window out": ("const __grid_constant__ Window data", "std::size_t out_offset"),
    "multicast": ("const __grid_constant__ Window data", "std::size_t out_offset", "T* mapped"),
    "LL": (),
    "LL128": (),
    "count": ("std::size_t count",),
    "root": ("std::uint32_t root",),
    "op": (),
}
"""Parameters of the kernel, by argument of the function."""
_PASSED = {
    "in": "in",
    "out": "out",
    "window in": "SymPtr<const T>(data, in_offset)",
    "window out": "SymPtr<T>(data, out_offset)",
    "only window out": "SymPtr<T>(data, out_offset)",
    "multicast": "MulticastPtr<T>(SymPtr<T>(data, out_offset), comm.ranks, mapped)",
    "LL": "Form::ll",
    "LL128": "Form::ll128",
    "count": "count",
    "root": "root",
    "op": "Op{}",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function template of the device headers that all threads of all blocks call."""

    name: str
    header: str
    """Below busbw/device."""
    arguments: tuple[str, ...]
    """What follows comm and block, in order: keys of the tables above."""
    function: str = ""
    """Its name in the header, if another."""
    elements: tuple[str, ...] = tuple(TYPES)
    """Types that it reduces."""
    operations: tuple[str, ...] = tuple(OPERATIONS)
    threads: int = MOST_THREADS
    """Of a block, at most."""
    oldest: int = 70
    """The first architecture that has its instructions. 70: the memory model of PTX begins there (PTX ISA, "Memory Consistency Model")."""

    @property
    def reduces(self) -> bool:
        """Whether it computes on elements; if not, it only moves them."""
        return "op" in self.arguments

    @property
    def has_elements(self) -> bool:
        """Whether it takes data at all."""
        return "count" in self.arguments


KERNELS = (
    Kernel("barrier", "comm.hpp", ()),
    Kernel("all_reduce_one_shot", "kernels/all_reduce.hpp", ("in", "out", "count", "op")),
    Kernel("all_reduce_two_shot", "kernels/all_reduce.hpp", ("window in", "window out", "count", "op")),
    Kernel("all_reduce_ring", "kernels/ring.hpp", ("window in", "window out", "count", "op")),
    Kernel("all_reduce_ll", "kernels/packets.hpp", ("LL", "in", "out", "count", "op"), "all_reduce_packets"),
    Kernel(
        "all_reduce_ll128",
        "kernels/packets.hpp",
        ("LL128", "in", "out", "count", "op"),
        "all_reduce_packets",
        threads=256,
    ),
    Kernel(
        "all_reduce_multimem",
        "kernels/multimem.hpp",
        ("multicast", "count", "op"),
        elements=("float32", "bfloat16"),
        operations=("sum",),
        oldest=90,
    ),
    Kernel("all_reduce_staged", "kernels/staged.hpp", ("in", "out", "count", "op")),
    Kernel("reduce_scatter_staged", "kernels/staged.hpp", ("in", "out", "count", "op")),
    Kernel("reduce_scatter_direct", "kernels/direct.hpp", ("window in", "out", "count", "op")),
    Kernel("all_gather_direct", "kernels/all_gather.hpp", ("in", "only window out", "count")),
    Kernel("all_gather_staged", "kernels/staged.hpp", ("in", "out", "count")),
    Kernel("all_to_all_staged", "kernels/staged.hpp", ("in", "out", "count")),
    Kernel("all_to_all_direct", "kernels/direct.hpp", ("in", "only window out", "count")),
    Kernel("broadcast_staged", "kernels/staged.hpp", ("in", "out", "count", "root")),
    Kernel("broadcast_direct", "kernels/direct.hpp", ("in", "only window out", "count", "root")),
)
_BY_NAME = {kernel.name: kernel for kernel in KERNELS}

DIVIDE = "divide"
"""Not of the headers: values over the number of ranks, after a sum, for avg. Integers are divided as integers, as NCCL does."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A kernel with its element type and operation: one function of the machine code."""

    kernel: str
    element: str = ""
    operation: str = ""

    @property
    def threads(self) -> int:
        """Of a block."""
        return _BY_NAME[self.kernel].threads if self.kernel in _BY_NAME else MOST_THREADS

    @property
    def form(self) -> str:
        """Of the packets by which it moves data, LL or LL128; empty if by none.

        Each form needs slots that nothing else ever lay in: data that an LL128 line left could be taken for the flags of LL.

        >>> Entry("all_reduce_ll128", "float32", "sum").form
        'LL128'
        """
        arguments = _BY_NAME[self.kernel].arguments if self.kernel in _BY_NAME else ()
        return next((form for form in PACKET_FORMS if form in arguments), "")

    @property
    def symbol(self) -> str:
        """Its name in the machine code.

        >>> Entry("all_reduce_one_shot", "float32", "sum").symbol
        'busbw_all_reduce_one_shot_float32_sum'
        """
        return "_".join(filter(None, ("busbw", self.kernel, self.element, self.operation)))


def every_entry(
    elements: Sequence[str] = tuple(TYPES),
    operations: Sequence[str] = tuple(OPERATIONS),
    words: Sequence[str] = tuple(WORDS.values()),
) -> Iterator[Entry]:
    """All kernels: those that compute with each of the elements and operations, those that move with each word."""
    for kernel in KERNELS:
        if kernel.reduces:
            for element in (one for one in elements if one in kernel.elements):
                for operation in (one for one in operations if one in kernel.operations):
                    yield Entry(kernel.name, element, operation)
        elif kernel.has_elements:
            for word in words:
                yield Entry(kernel.name, word)
        else:
            yield Entry(kernel.name)
    for element in elements:
        yield Entry(DIVIDE, element)


class Layout(ctypes.Structure):
    """Layout of comm.hpp."""

    _fields_ = (("ranks", ctypes.c_uint32), ("blocks", ctypes.c_uint32), ("slot_bytes", ctypes.c_uint64))


class Window(ctypes.Structure):
    """Window of window.hpp."""

    _fields_ = (("base", ctypes.c_uint64 * MOST_RANKS), ("bytes", ctypes.c_uint64))


class Comm(ctypes.Structure):
    """Comm of comm.hpp. `source_of` has the compiler compare sizes and places of fields with these."""

    _fields_ = (
        ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("layout", Layout),
        ("control", Window),
        ("wait_ns", ctypes.c_uint64),
    )


def layout_bytes(ranks: int, blocks: int, slot_bytes: int) -> int:
    """Bytes of a control window: Layout::bytes() of comm.hpp, which `source_of` has the compiler compare.

    A report, two lines a semaphore of each block and peer, a line an epoch of each block, two slots of each block and peer.
    """
    semaphores = blocks * ranks * 2 * LINE_BYTES
    return LINE_BYTES + semaphores + blocks * LINE_BYTES + blocks * ranks * 2 * slot_bytes


def as_window(addresses: Sequence[int], size_bytes: int) -> Window:
    """The struct of a window that lies at these addresses, by rank."""
    if len(addresses) > MOST_RANKS:
        raise ValueError(f"{len(addresses)} ranks; a window has places for {MOST_RANKS}")
    made = Window()
    made.base[: len(addresses)] = addresses
    made.bytes = size_bytes
    return made


def argument_bytes(kernel: str, **values: int | Window) -> list[bytes]:
    """The bytes of each parameter after comm, in the kernel's order. Missing or surplus values raise TypeError.

    >>> [part.hex() for part in argument_bytes("broadcast_staged", root=1, count=2, out=4, **{"in": 3})[2:]]
    ['0200000000000000', '01000000']
    """
    wanted = parameters(kernel)
    if set(wanted) != set(values):
        raise TypeError(f"{kernel} takes {', '.join(wanted) or 'nothing'}, not {', '.join(values) or 'nothing'}")
    return [_encoded(name, values[name]) for name in wanted]


def parameters(kernel: str) -> list[str]:
    """Names of the parameters after comm, in order."""
    declared = [one for argument in _BY_NAME[kernel].arguments for one in _DECLARED[argument]]
    return [one.rsplit(" ", 1)[-1] for one in declared]


def _encoded(name: str, value: int | Window) -> bytes:
    if isinstance(value, Window):
        return bytes(value)
    return struct.pack("<I" if name == "root" else "<Q", value)


def divide_bytes(address: int, count: int, ranks: int) -> list[bytes]:
    """The bytes of the parameters of `divide`."""
    return [struct.pack("<Q", address), struct.pack("<Q", count), struct.pack("<I", ranks)]


def source_of(entries: Sequence[Entry]) -> str:
    """CUDA C++ with a function for each entry, and the assertions that host and device agree on what they pass each other."""
    named = {_BY_NAME[one.kernel].header for one in entries if one.kernel != DIVIDE}
    lines = [f'#include "busbw/device/{header}"' for header in sorted({"comm.hpp", "bfloat16.hpp"} | named)]
    lines += ["using namespace busbw::device;", *_assertions(), _BLOCK]
    lines += [_divide(one) if one.kernel == DIVIDE else _function(one, _BY_NAME[one.kernel]) for one in entries]
    return "\n".join(lines) + "\n"


_BLOCK = """#define BUSBW_BLOCK \\
  BlockBarrier barrier_of_block; \\
  const Block block{blockIdx.x, gridDim.x, threadIdx.x, blockDim.x, &barrier_of_block}"""


def _bounds(threads: int) -> str:
    """The second bound, one block a multiprocessor, is not idle: without it ptxas 13 saves registers for a second block, and spills."""
    return f"__launch_bounds__({threads}, 1)"


def _assertions() -> Iterator[str]:
    for made in (Layout, Window, Comm):
        yield f"static_assert(sizeof({made.__name__}) == {ctypes.sizeof(made)});"
        for field, _ in made._fields_:
            yield f"static_assert(__builtin_offsetof({made.__name__}, {field}) == {getattr(made, field).offset});"
    for ranks, blocks, slot in ((1, 1, 64), (3, 5, 4096)):
        yield f"static_assert(Layout{{{ranks}, {blocks}, {slot}}}.bytes() == {layout_bytes(ranks, blocks, slot)});"
    yield f"static_assert(sizeof(Report) == {LINE_BYTES} && kMostRanks == {MOST_RANKS});"
    for field, offset in (("primitive", 4), ("block", 8), ("peer", 12), ("expected", 16), ("seen", 24)):
        yield f"static_assert(__builtin_offsetof(Report, {field}) == {offset});"


def _function(entry: Entry, kernel: Kernel) -> str:
    declared = ["const __grid_constant__ Comm comm"]
    declared += [one for argument in kernel.arguments for one in _DECLARED[argument]]
    passed = ", ".join(["comm", "block", *(_PASSED[argument] for argument in kernel.arguments)])
    aliases = [f"using T = {_type(entry)};"] if entry.element else []
    aliases += [f"using Op = {OPERATIONS[entry.operation]};"] if entry.operation else []
    return "\n".join(
        (
            f"namespace of_{entry.symbol} {{",
            *aliases,
            f'extern "C" __global__ void {_bounds(kernel.threads)} {entry.symbol}({", ".join(declared)}) {{',
            f"  BUSBW_BLOCK;\n  {kernel.function or kernel.name}({passed});\n}}\n}}",
        )
    )


def _type(entry: Entry) -> str:
    return (TYPES if entry.operation or entry.kernel == DIVIDE else _WORD_TYPES)[entry.element]


def _divide(entry: Entry) -> str:
    kind = _type(entry)
    value = "float(values[i]) / float(ranks)" if "16" in entry.element else f"values[i] / ({kind})(ranks)"
    return (
        f'extern "C" __global__ void {_bounds(MOST_THREADS)} {entry.symbol}({kind}* values, std::size_t count, std::uint32_t ranks) {{\n'
        "  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count; i += std::size_t(gridDim.x) * blockDim.x)\n"
        f"    values[i] = ({kind})({value});\n}}"
    )
