"""Kernels for GPUs are compiled without one: the cache of machine code, what is said where something is missing, and what compilers make of the headers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from benchmarks.execute.sass import _examined, functions, resources, violations

from busbw.execution import cuda, cuda_compiler
from busbw.execution.cuda_compiler import (
    CompilationError,
    CubinCache,
    Nvcc,
    Nvrtc,
    cache_folder,
    device_headers,
    find_compiler,
)
from busbw.execution.cuda_driver import CudaUnavailableError, open_driver
from busbw.execution.cuda_kernels import Entry, argument_bytes, every_entry, layout_bytes, source_of

from .fake_cuda import FakeCompiler, FakeDriver


def test_the_cache_compiles_once_for_each_source_architecture_version_and_options(tmp_path):
    cache, compiler = CubinCache(tmp_path), FakeCompiler()
    first = cache.cubin(compiler, "a", 90)
    assert cache.cubin(compiler, "a", 90) == first
    assert compiler.compiled == 1
    cache.cubin(compiler, "b", 90)
    cache.cubin(compiler, "a", 100)
    cache.cubin(compiler, "a", 90, ("-O1",))
    assert compiler.compiled == 4
    newer = FakeCompiler((13, 1))
    cache.cubin(newer, "a", 90)
    assert newer.compiled == 1


def test_a_damaged_entry_is_made_again(tmp_path):
    cache, compiler = CubinCache(tmp_path), FakeCompiler()
    whole = cache.cubin(compiler, "a", 90)
    (file,) = tmp_path.iterdir()
    for damage in (b"", file.read_bytes()[:-1], b"\0" * 40):
        file.write_bytes(damage)
        assert cache.cubin(compiler, "a", 90) == whole
    assert compiler.compiled == 4


def test_the_cache_keeps_what_was_used_last_within_its_bound(tmp_path):
    """Entries of 32 bytes of digest, "sm_90", a line end and 94 letters: 132 bytes. 300 hold two."""
    cache, compiler = CubinCache(tmp_path, most_bytes=300), FakeCompiler()
    for age, letter in enumerate("abc"):
        cache.cubin(compiler, letter * 94, 90)
        for file in tmp_path.iterdir():
            os.utime(file, (age, age)) if file.stat().st_mtime > 10 else None
    assert len(list(tmp_path.iterdir())) == 2
    made = compiler.compiled
    cache.cubin(compiler, "c" * 94, 90)
    assert compiler.compiled == made
    cache.cubin(compiler, "a" * 94, 90)
    assert compiler.compiled == made + 1


def test_a_folder_that_cannot_be_written_is_no_cache():
    assert CubinCache(Path("/proc/no/such")).cubin(FakeCompiler(), "a", 90) == b"sm_90\na"


def test_the_cache_lies_where_xdg_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache_folder() == Path("/some/where/busbw/cubin")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    assert cache_folder() == Path.home() / ".cache/busbw/cubin"


def test_without_bindings_or_compiler_both_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr(cuda_compiler.shutil, "which", lambda name: None)
    with pytest.raises(CudaUnavailableError, match=r"needs the package cuda-bindings.*pip install 'busbw\[cuda\]'"):
        open_driver()
    with pytest.raises(CudaUnavailableError, match="There is no nvcc on PATH"):
        find_compiler()
    with pytest.raises(CudaUnavailableError) as raised:
        cuda.find_toolkit()
    assert "cuda-bindings" in str(raised.value)
    assert "No compiler for CUDA kernels" in str(raised.value)


class Bindings:
    """cuda.bindings.driver on a machine where something is missing."""

    def __init__(self, status: int, devices: int = 0) -> None:
        self.status, self.devices = status, devices

    CUresult = int

    def cuInit(self, flags: int) -> tuple[int]:  # noqa: N802
        if self.status < 0:
            raise RuntimeError("Failed to dlopen libcuda.so.1")
        return (self.status,)

    def cuDeviceGetCount(self) -> tuple[int, int]:  # noqa: N802
        return 0, self.devices

    def cuGetErrorName(self, code: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"CUDA_ERROR_NO_DEVICE"

    def cuGetErrorString(self, code: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, b"no CUDA-capable device is detected"


@pytest.mark.parametrize(
    ("bindings", "said"),
    [
        (Bindings(-1), "NVIDIA's driver is not on this machine: libcuda.so.1"),
        (Bindings(100), r"does not start: cuInit: CUDA_ERROR_NO_DEVICE \(100\).*look at nvidia-smi, at CUDA_VISIBLE_DEVICES"),
        (Bindings(802), "systemctl status nvidia-fabricmanager"),
        (Bindings(0, 0), "is there but has no device"),
    ],
)  # fmt: skip
def test_what_a_machine_lacks_is_said(monkeypatch, bindings, said):
    module = type(sys)("cuda.bindings")
    module.driver = bindings
    monkeypatch.setitem(sys.modules, "cuda", type(sys)("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", module)
    with pytest.raises(CudaUnavailableError, match=said):
        open_driver()


def test_a_compiler_newer_than_the_driver_is_refused(monkeypatch):
    monkeypatch.setattr(cuda, "open_driver", FakeDriver)
    monkeypatch.setattr(cuda, "find_compiler", lambda: FakeCompiler((14, 0)))
    with pytest.raises(CudaUnavailableError, match=r"driver of CUDA 13.0 does not load.*nvidia-cuda-nvrtc"):
        cuda.find_toolkit()


def test_every_header_of_devices_is_beside_the_package():
    assert (device_headers() / "busbw" / "device" / "kernels" / "staged.hpp").is_file()


def test_a_control_window_has_room_for_all_it_holds():
    """2 ranks, 1 block, slots of 64 bytes: the report, 2 semaphores of 2 lines, an epoch, 2 slots of each rank: 1 + 4 + 1 + 4 lines."""
    assert layout_bytes(2, 1, 64) == 10 * 64


def test_missing_arguments_of_a_kernel_are_refused():
    with pytest.raises(TypeError, match="broadcast_staged takes in, out, count, root, not in"):
        argument_bytes("broadcast_staged", **{"in": 1})


LISTING = """
.text.busbw_barrier:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   MEMBAR.ALL.SYS ;
        /*0020*/                   REDG.E.ADD.64.STRONG.SYS desc[UR4][R6.64], R8 ;
        /*0030*/              @!P2 BRA `(.L_x_1) ;
.L_x_2:
        /*0040*/                   LDG.E.64.STRONG.SYS R10, desc[UR4][R6.64+0x40] ;
        /*0050*/               @P0 BRA `(.L_x_3) ;
        /*0060*/                   BRA `(.L_x_2) ;
.L_x_3:
        /*0070*/                   LDG.E.64.STRONG.SYS R10, desc[UR4][R6.64+0x40] ;
        /*0080*/                   CCTL.IVALL ;
        /*0090*/                   EXIT ;
"""


def test_machine_code_that_holds_is_passed():
    (barrier,) = functions(LISTING)
    assert [sorted(loop) for loop in barrier.innermost_loops()] == [[1, 2, 3], [4, 5, 6]]
    assert violations(barrier, Entry("barrier")) == []


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("        /*0060*/                   BRA", "        /*0058*/                   CCTL.IVALL ;\n        /*0060*/                   BRA", "a poll loop that drops the L1 cache (CCTL)"),
        ("CCTL.IVALL", "NOP", "no acquire (CCTL.IVALL)"),
        ("MEMBAR.ALL.SYS", "MEMBAR.SC.GPU", "a signal without a release (MEMBAR.SYS)"),
        ("REDG.E.ADD.64.STRONG.SYS", "REDG.E.ADD.64.STRONG.GPU", "no signal (RED or ATOM of 64 bits, STRONG.SYS)"),
        ("LDC R1", "STL R1", "local memory (STL)"),
        ("LDC R1", "LDG.E.128.CONSTANT R1", "a load outside the memory model (LDG.CONSTANT: ld.global.nc)"),
        ("MEMBAR.ALL.SYS ;", "MEMBAR.ALL.SYS ;\n        /*0018*/                   STG.E [R4], R8 ;", "a signal without a release (MEMBAR.SYS)"),
    ],
)  # fmt: skip
def test_machine_code_that_breaks_a_rule_is_named(old, new, wrong):
    (barrier,) = functions(LISTING.replace(old, new))
    assert violations(barrier, Entry("barrier")) == [wrong]


def test_a_kernel_that_moves_data_by_less_than_128_bits_is_named():
    (function,) = functions(LISTING)
    assert violations(function, Entry("all_gather_staged", "uint32")) == [
        "no 128-bit load in a loop",
        "no 128-bit store in a loop",
    ]


def test_registers_and_local_memory_are_read_from_both_tools():
    """As cuobjdump 13.5 and nvcc 13.0 print them."""
    cuobjdump = (
        " Function busbw_barrier:\n  REG:24 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:548 TEXTURE:0 SURFACE:0 SAMPLER:0\n"
    )
    ptxas = """ptxas info    : Compiling entry function 'busbw_divide' for 'sm_90'
ptxas info    : Function properties for busbw_divide
    8 bytes stack frame, 8 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size
"""
    assert resources(cuobjdump) == {"busbw_barrier": (24, 8)}
    assert resources(ptxas) == {"busbw_divide": (40, 40)}


def compilers() -> list[object]:
    found: list[object] = []
    for kind in (Nvcc, Nvrtc):
        try:
            found.append(kind())
        except CudaUnavailableError:
            continue
    return found


def test_the_headers_compile_for_a_gpu_without_local_memory():
    """The smallest share of X10: one compiler, sm_90, four kernels. That host and device agree on structs is asserted in the source itself."""
    found = compilers()
    if not found:
        pytest.skip("no toolchain: neither nvcc nor NVRTC")
    some = [
        one
        for one in every_entry(("float32",), ("sum",), ("uint64",))
        if one.kernel in ("barrier", "all_reduce_two_shot", "all_gather_staged")
    ]
    wrong = {one.entry.symbol: one.wrong for one in _examined(found[0], 90, some, None) if one.wrong}
    assert wrong == {}
    with pytest.raises(CompilationError, match=r"static_assert|static assertion"):
        found[0].cubin(source_of([]).replace("Layout{1, 1, 64}.bytes() == ", "Layout{1, 1, 64}.bytes() == 1 + "), 90)
