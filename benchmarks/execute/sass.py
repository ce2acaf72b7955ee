"""X10: what compilers make of the device headers, read from the machine code: 128-bit accesses, nothing in local memory, polls that drop no cache.

`python -m benchmarks.execute.sass [--smoke]` lists each kernel with its registers and what is wrong with it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from benchmarks.rows import NO_TOOLCHAIN, NotMeasurableError
from busbw.execution.cuda_compiler import CompilationError, Compiler, Nvcc, Nvrtc, device_headers
from busbw.execution.cuda_driver import CudaUnavailableError
from busbw.execution.cuda_kernels import KERNELS, Entry, Kernel, every_entry, source_of

__all__ = [
    "Function",
    "Report",
    "compile_beside_vendors",
    "examine",
    "examine_others",
    "functions",
    "resources",
    "violations",
]

ARCHITECTURES = (80, 90, 100, 120)
_OTHER_TYPES_ON = 90
_OPTIONS = ("-std=c++20",)
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_[\w.]+|\$\S+):")
_TARGET = re.compile(r"`\((\.L_[\w.]+)\)")
_POLLS = re.compile(r"^LDG?\.(?:E\.)?(?:\d+\.)?STRONG\.SYS")


@dataclass(slots=True)
class Function:
    """The machine code of a kernel. loops: the instructions of each natural loop, by index."""

    name: str
    predicates: list[str] = field(default_factory=list)
    opcodes: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def successors(self, at: int) -> list[int]:
        """What may run after an instruction."""
        opcode, operands = self.opcodes[at], self.operands[at]
        following = [at + 1] if at + 1 < len(self.opcodes) else []
        named = _TARGET.search(operands)
        if opcode.startswith(("BRA", "JMP")) and named and named[1] in self.labels:
            always = not self.predicates[at] and operands == named[0]
            return [self.labels[named[1]]] if always else [self.labels[named[1]], *following]
        if opcode.startswith(("EXIT", "RET", "BRX", "KILL")):
            return following if self.predicates[at] else []
        return following

    def loops(self) -> list[frozenset[int]]:
        """Natural loops: for each jump back to an instruction that dominates it, all that reaches the jump without passing there."""
        reached, dominators, before = _dominators(self)
        found: dict[int, set[int]] = {}
        for at in reached:
            for head in self.successors(at):
                if head in dominators[at]:
                    body, left = found.setdefault(head, {head}), [at]
                    while left:
                        one = left.pop()
                        if one not in body:
                            body.add(one)
                            left += before[one]
        return [frozenset(body) for body in found.values()]

    def innermost_loops(self) -> list[frozenset[int]]:
        """Loops that hold no other."""
        loops = self.loops()
        return [one for one in loops if not any(other < one for other in loops)]


def _dominators(function: Function) -> tuple[list[int], dict[int, set[int]], dict[int, list[int]]]:
    """Instructions that can be reached; of each those that every way to it passes, but only where a block begins or ends; and what precedes it."""
    size = len(function.opcodes)
    leaders = {0, *(target for at in range(size) for target in function.successors(at) if target != at + 1)}
    leaders |= {at + 1 for at in range(size - 1) if function.successors(at) != [at + 1]}
    order: list[int] = []
    seen, left = {0}, [0]
    before: dict[int, list[int]] = {at: [] for at in range(size)}
    while left:
        at = left.pop()
        order.append(at)
        for following in function.successors(at):
            before[following].append(at)
            if following not in seen:
                seen.add(following)
                left.append(following)
    heads = sorted(leaders & seen)
    block_of: dict[int, int] = {}
    for at in sorted(seen):
        block_of[at] = at if at in leaders else block_of[at - 1]
    into = {head: {block_of[at] for at in before[head]} for head in heads}
    everything = set(heads)
    over = {head: {0} if head == 0 else set(everything) for head in heads}
    changing = True
    while changing:
        changing = False
        for head in heads[1:]:
            sources = [over[source] for source in into[head]]
            new = {head} | (set.intersection(*sources) if sources else set())
            if new != over[head]:
                over[head], changing = new, True
    return order, {at: over[block_of[at]] for at in seen}, before


def functions(listing: str) -> Iterator[Function]:
    """The kernels in what `nvdisasm -c` prints."""
    now: Function | None = None
    for line in listing.splitlines():
        if line.startswith(".text."):
            if now is not None:
                yield now
            now = Function(line[len(".text.") :].rstrip(":"))
        elif now is not None and (label := _LABEL.match(line)):
            now.labels[label[1]] = len(now.opcodes)
        elif now is not None and (found := _INSTRUCTION.match(line)):
            now.predicates.append(found[1] or "")
            now.opcodes.append(found[2])
            now.operands.append(found[3])
    if now is not None:
        yield now


def violations(function: Function, entry: Entry) -> list[str]:
    """What a kernel's machine code has that it must not, or lacks; empty if all is well."""
    found = []
    opcodes = function.opcodes
    kernel = next((one for one in KERNELS if one.name == entry.kernel), None)
    if local := sorted({one for one in opcodes if one.startswith(("LDL", "STL"))}):
        found.append(f"local memory ({', '.join(local)})")
    if any(one.startswith("LDG") and "CONSTANT" in one for one in opcodes):
        found.append("a load outside the memory model (LDG.CONSTANT: ld.global.nc)")
    if kernel is None:
        return found
    inside = {at for loop in function.loops() for at in loop}
    for what, pattern in _wide(kernel):
        if not any(re.match(pattern, opcodes[at]) for at in inside):
            found.append(f"no 128-bit {what} in a loop")
    polls = [loop for loop in function.innermost_loops() if any(_POLLS.match(opcodes[at]) for at in loop)]
    if not polls:
        found.append("no loop that polls a word of another rank (LDG.STRONG.SYS)")
    if any(opcodes[at].startswith("CCTL") for loop in polls for at in loop):
        found.append("a poll loop that drops the L1 cache (CCTL)")
    if "LL" in kernel.arguments:  # its packets bring their own news
        return found
    if not any(one.startswith("CCTL.IVALL") for one in opcodes):
        found.append("no acquire (CCTL.IVALL)")
    if "LL128" in kernel.arguments:
        return found
    signals = [at for at, one in enumerate(opcodes) if one.startswith(("RED", "ATOM")) and "64.STRONG.SYS" in one]
    if not signals:
        found.append("no signal (RED or ATOM of 64 bits, STRONG.SYS)")
    if any(not _released(opcodes, at) for at in signals):
        found.append("a signal without a release (MEMBAR.SYS)")
    return found


def _wide(kernel: Kernel) -> list[tuple[str, str]]:
    """Accesses of 128 bits that a kernel's loops must have: what, and how the instruction looks."""
    if "multicast" in kernel.arguments:
        return [
            ("reduction by the switch", r"LDGMC\.E\S*\.128|LDGMC\.E"),
            ("store at all ranks", r"STG\.E\.128\.STRONG\.SYS"),
        ]
    if "LL" in kernel.arguments or "LL128" in kernel.arguments:
        return [("load of a packet", r"LDG\.E\.128\.STRONG\.SYS"), ("store of a packet", r"STG\.E\.128\.STRONG\.SYS")]
    if not kernel.has_elements:
        return []
    return [("load", r"LDG\.E\.128$"), ("store", r"STG\.E\.128$")]


def _released(opcodes: Sequence[str], at: int) -> bool:
    """Whether a fence of the system stands before an instruction, with no store between."""
    for one in reversed(opcodes[:at]):
        if one.startswith("MEMBAR"):
            return one.endswith(".SYS")
        if one.startswith(("ST", "RED", "ATOM")):
            return False
    return False


_OTHERS = (
    """#include "busbw/device/kernels/experts.hpp"
#include "busbw/device/kernels/gemm_all_reduce.hpp"
"""
    + source_of([])
    + """
extern "C" __global__ void __launch_bounds__(512, 1) busbw_moe_dispatch(const __grid_constant__ Comm comm, const __grid_constant__ Window data, ExpertSlots shape,
    const float* tokens, const std::int32_t* chosen, std::uint32_t count, std::uint32_t top, std::int32_t* places) {
  BUSBW_BLOCK;
  moe_dispatch(comm, block, shape, tokens, chosen, count, top, SymPtr<float>(data, 0), SymPtr<std::uint32_t>(data, shape.elements() * 4), places);
}
extern "C" __global__ void __launch_bounds__(512, 1) busbw_moe_combine(const __grid_constant__ Comm comm, const __grid_constant__ Window data, ExpertSlots shape,
    const std::int32_t* chosen, const std::int32_t* places, const float* weights, std::uint32_t count, std::uint32_t top, float* out) {
  BUSBW_BLOCK;
  moe_combine(comm, block, shape, SymPtr<const float>(data, 0), chosen, places, weights, count, top, out);
}
extern "C" __global__ void __launch_bounds__(512, 1) busbw_gemm_all_reduce(const __grid_constant__ Comm comm, const __grid_constant__ Window data, TiledProduct shape,
    const float* a, const float* b, std::size_t out_offset, std::size_t ready_offset, std::uint64_t call) {
  BUSBW_BLOCK;
  gemm_all_reduce(comm, block, shape, a, b, SymPtr<float>(data, 0), SymPtr<float>(data, out_offset), SymPtr<std::uint64_t>(data, ready_offset), call);
}
"""
)
"""Kernels that `busbw.execution.cuda` does not launch: mixtures of experts, and the fused example."""
_INTERPRETER = (
    '#include "busbw/device/kernels/interpreter.hpp"\n'
    + source_of([])
    + """
extern "C" __global__ void __launch_bounds__(512, 1) busbw_run_plan(const __grid_constant__ Program program, ReduceOp op) {
  BUSBW_BLOCK;
  run_plan(program, block, Arithmetic<float>{}, op);
}
"""
)


def examine_others(architecture: int = 90) -> tuple[list[str], list[str]]:
    """What is wrong with kernels that are compiled only to be looked at, by the first compiler there is; and what is to be said of the others.

    The interpreter keeps its loops and operands in local memory, by what it is: that is said, and no fault.
    """
    compiler = _compilers()[0][0]
    wrong, notes = [], []
    nvdisasm = _tool("nvdisasm")
    with tempfile.TemporaryDirectory(prefix="busbw-sass-") as folder:
        cubin = Path(folder) / "others.cubin"
        for what, source in (("others", _OTHERS), ("interpreter", _INTERPRETER)):
            try:
                if isinstance(compiler, Nvcc):
                    options = ["-cubin", f"-arch=sm_{architecture}", *_OPTIONS, "-Xptxas", "-v"]
                    image, said = compiler.compiled(source, options)
                else:
                    image, said = compiler.cubin(source, architecture, _OPTIONS), ""
            except CompilationError as error:
                wrong.append(f"{compiler.name} sm_{architecture} {what}: does not compile: {error}")
                continue
            used = resources(said)
            if what == "interpreter":
                notes.append(
                    f"the interpreter compiles; registers and bytes of local memory: {used.get('busbw_run_plan', 'not told')}"
                )
                continue
            wrong += [
                f"{compiler.name} sm_{architecture} {name}: {local} bytes of stack and spills"
                for name, (_, local) in used.items()
                if local
            ]
            cubin.write_bytes(image)
            if nvdisasm:
                for function in functions(_printed([nvdisasm, "-c", str(cubin)])):
                    wrong += [
                        f"{compiler.name} sm_{architecture} {function.name}: {text}"
                        for text in violations(function, Entry("barrier"))
                    ]
    return wrong, notes


_USED = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+).*? LOCAL:(\d+)", re.DOTALL)
_PTXAS = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", re.DOTALL
)  # fmt: skip


def resources(text: str) -> dict[str, tuple[int, int]]:
    """Registers and bytes of local memory of each kernel, from `cuobjdump -res-usage` or `nvcc -Xptxas -v`."""
    found = {name: (int(used), int(stack) + int(local)) for name, used, stack, local in _USED.findall(text)}
    for name, stack, stores, loads, used in _PTXAS.findall(text):
        found[name] = (int(used), int(stack) + int(stores) + int(loads))
    return found


@dataclass(frozen=True, slots=True)
class Report:
    """One kernel as one compiler made it for one architecture."""

    compiler: str
    architecture: int
    entry: Entry
    registers: int | None
    wrong: tuple[str, ...]


def examine(smoke: bool = False) -> tuple[list[Report], list[str]]:
    """All kernels by all compilers for all architectures, or with smoke a few; and what could not be looked at, and why.

    Raises NotMeasurableError if there is no compiler.
    """
    compilers, notes = _compilers()
    nvdisasm = _tool("nvdisasm")
    if nvdisasm is None:
        notes.append("no nvdisasm (pip install nvidia-cuda-nvdisasm): figures of ptxas only")
    reports = []
    for compiler in compilers[:1] if smoke else compilers:
        for architecture in (90,) if smoke else ARCHITECTURES:
            if isinstance(compiler, Nvrtc) and architecture not in compiler.architectures():
                notes.append(f"{compiler.name} knows no sm_{architecture}")
                continue
            for entries in _portions(architecture, smoke):
                reports += list(_examined(compiler, architecture, entries, nvdisasm))
    return reports, notes


def _compilers() -> tuple[list[Compiler], list[str]]:
    found: list[Compiler] = []
    notes = []
    for kind in (Nvcc, Nvrtc):
        try:
            found.append(kind())
        except CudaUnavailableError as error:
            notes.append(f"no {kind.__name__}: {error}")
    if not found:
        raise NotMeasurableError(f"{NO_TOOLCHAIN}: {' '.join(notes)}")
    return found, notes


def _portions(architecture: int, smoke: bool) -> Iterator[list[Entry]]:
    """Kernels that are compiled together: each for one type, and on one architecture for a type of each size."""
    if smoke:
        entries = list(every_entry(("float32",), ("sum",), ("uint64",)))
        yield [one for one in entries if _oldest(one) <= architecture]
        return
    yield [one for one in every_entry(("float32",), ("sum",), ("uint64", "uint8")) if _oldest(one) <= architecture]
    if architecture == _OTHER_TYPES_ON:
        others = every_entry(("bfloat16", "float16", "float64", "int8"), ("max",), ())
        yield [one for one in others if one.element]


def _oldest(entry: Entry) -> int:
    return next((kernel.oldest for kernel in KERNELS if kernel.name == entry.kernel), 0)


def _examined(compiler: Compiler, architecture: int, entries: list[Entry], nvdisasm: str | None) -> Iterator[Report]:
    with tempfile.TemporaryDirectory(prefix="busbw-sass-") as folder:
        cubin = Path(folder) / "kernels.cubin"
        said = ""
        try:
            if isinstance(compiler, Nvcc):
                options = ["-cubin", f"-arch=sm_{architecture}", *_OPTIONS, "-Xptxas", "-v"]
                image, said = compiler.compiled(source_of(entries), options)
            else:
                image = compiler.cubin(source_of(entries), architecture, _OPTIONS)
        except CompilationError as error:
            for entry in entries:
                yield Report(compiler.name, architecture, entry, None, (f"does not compile: {error}",))
            return
        cubin.write_bytes(image)
        if not said and (tool := _tool("cuobjdump")) is not None:
            said = _printed([tool, "-res-usage", str(cubin)])
        code = {one.name: one for one in functions(_printed([nvdisasm, "-c", str(cubin)]))} if nvdisasm else {}
    used = resources(said)
    for entry in entries:
        wrong = []
        registers, local = used.get(entry.symbol, (None, 0))
        if local:
            wrong.append(f"{local} bytes of stack and spills")
        if nvdisasm and entry.symbol not in code:
            wrong.append("not in the machine code")
        elif nvdisasm:
            wrong += violations(code[entry.symbol], entry)
        yield Report(compiler.name, architecture, entry, registers, tuple(wrong))


def _tool(name: str) -> str | None:
    """A tool on PATH, of an installed toolkit, or of NVIDIA's packages."""
    found = shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")
    if found:
        return found
    for package in (f"nvidia-cuda-{name}", f"nvidia-cuda-{name}-cu13", f"nvidia-cuda-{name}-cu12"):
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == name and Path(file.locate()).is_file():
                return str(file.locate())
    return None


def _printed(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise NotMeasurableError(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()[:300]}")
    return done.stdout


_BESIDE = """#include <nccl.h>
#include <nccl_device.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include "busbw/device/kernels/all_reduce.hpp"

namespace ours = busbw::device;

extern "C" __global__ void beside(const __grid_constant__ ours::Comm comm, ncclDevComm nccl, float* data, std::size_t count) {
  ours::BlockBarrier barrier;
  const ours::Block block{blockIdx.x, gridDim.x, threadIdx.x, blockDim.x, &barrier};
  ours::all_reduce_one_shot(comm, block, static_cast<const float*>(data), data, count, ours::Sum{});
  ncclLsaBarrierSession<ncclCoopCta> session{ncclCoopCta(), nccl, ncclTeamTagLsa(), blockIdx.x};
  session.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  nvshmemx_barrier_all_block();
}
"""


def compile_beside_vendors(architecture: int = 90) -> str | None:
    """Compiles our headers in one unit with NCCL's and NVSHMEM's device headers, from their packages, by nvcc; None if all is well, else why not.

    Raises NotMeasurableError if nvcc or a package is missing.
    """
    try:
        nvcc = Nvcc()
    except CudaUnavailableError as error:
        raise NotMeasurableError(f"{NO_TOOLCHAIN}: {error}") from None
    folders = []
    for package, header in (("nvidia-nccl-cu13", "nccl_device.h"), ("nvidia-nvshmem-cu13", "nvshmemx.h")):
        try:
            files = [file for file in metadata.files(package) or [] if file.name == header]
        except metadata.PackageNotFoundError:
            files = []
        if not files:
            raise NotMeasurableError(f"{NO_TOOLCHAIN}: no {header}: pip install {package}")
        folders.append(str(Path(files[0].locate()).parent))
    try:
        nvcc.compiled(
            _BESIDE, ["-cubin", f"-arch=sm_{architecture}", "-rdc=true", *_OPTIONS, *(f"-I{one}" for one in folders)]
        )
    except CompilationError as error:
        return str(error)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints every kernel; status 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execute.sass", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one compiler, sm_90, float32")
    given = parser.parse_args(arguments)
    try:
        reports, notes = examine(given.smoke)
    except NotMeasurableError as error:
        print(error)
        return 0
    for note in notes:
        print(note, file=sys.stderr)
    for one in reports:
        print(
            f"{one.compiler:12} sm_{one.architecture:<4} {one.entry.symbol:50} {one.registers or '':>4}  {'; '.join(one.wrong)}"
        )
    others, more = ([], []) if given.smoke else examine_others()
    for text in (*more, *others):
        print(text)
    wrong = sum(bool(one.wrong) for one in reports) + len(others)
    print(f"{len(reports)} kernels of {device_headers()}; wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
