"""The driver's calls as cuda-bindings makes them, against a libcuda whose C signatures are those of cuda.h: types, order and flags of arguments.

Needs cuda-bindings, cuda.h and a C compiler; `pip install 'busbw[cuda]'` and a CUDA toolkit. Skipped where one is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "libcuda_stub.c"
PROGRAM = """
import ctypes, os, sys
import numpy as np
from busbw.execution.cuda import CudaCommunicator, Toolkit, each_rank
from busbw.execution.cuda_compiler import CubinCache
from busbw.execution.cuda_driver import CudaError, open_driver
from pathlib import Path

class Compiler:
    name, version = "none", (13, 0)
    def cubin(self, source, architecture, options=()):
        return b"\\x7fELF of " + source[:50].encode()

driver = open_driver()
assert driver.version() == (13, 0) and driver.device_count() == 2
device = driver.device(1)
assert (device.name, device.architecture, device.multiprocessors, device.shares_by_descriptor) == ("stub 1", 90, 132, True)
assert device.uuid == "ab" * 15 + "01"
assert driver.peer_access(0, 1).native_atomics
driver.set_current(driver.retain_context(0))
for call, said in ((lambda: driver.device(5), "There are 2 GPUs"), (lambda: driver.allocate(1 << 41), "OUT_OF_MEMORY (2)"), (lambda: driver.load(b"no"), "CUDA 13.0")):
    try:
        call()
    except CudaError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
memory = driver.allocate(4096)
handle = driver.ipc_export(memory)
assert len(handle) == 64 and driver.ipc_open(handle) == memory
driver.ipc_close(memory)
driver.free(memory)
stream, event = driver.create_stream(), driver.create_event(True)
driver.record(event, stream)
driver.wait_for(stream, event)
assert driver.elapsed_s(event, event) == 0.0025 and not driver.is_captured(stream)
driver.begin_capture(stream)
graph = driver.end_capture(stream)
driver.launch_graph(graph, stream)
driver.destroy_graph(graph)
driver.destroy_event(event)
driver.destroy_stream(stream)
tools = Toolkit(driver, Compiler(), CubinCache(Path("/proc/no-folder")))
ranks = CudaCommunicator.local([0, 1], toolkit=tools)
print(each_rank(ranks, lambda comm: float(comm.all_reduce(np.arange(5, dtype=np.float32) + comm.rank + 1).sum())), flush=True)
each_rank(ranks, lambda comm: comm.shared(1 << 20))
for one in ranks:
    one.close()
before = len(os.listdir("/proc/self/fd"))
name, child = f"stub-{os.getpid()}", os.fork()
rank = 0 if child else 1
with CudaCommunicator(rank, 2, name, wait_s=20, toolkit=tools) as comm:
    window = comm.shared(4096)
    window.array.view(np.float32).fill(7 + rank)
    peers = comm._peers
    peers.facts()  # the stub's kernels do nothing; a meeting on the host
    assert ctypes.c_float.from_address(window.addresses[1 - rank]).value == 8 - rank
    peers.facts()
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(os.listdir("/proc/self/fd")) == before
"""


def test_every_call_of_the_driver_has_the_arguments_that_cuda_h_says(tmp_path):
    pytest.importorskip("cuda.bindings.driver", reason="no cuda-bindings")
    header = next(
        (one for one in (Path("/usr/local/cuda/include"), Path("/usr/include")) if (one / "cuda.h").is_file()), None
    )
    compiler = shutil.which("cc") or shutil.which("gcc")
    if header is None or compiler is None:
        pytest.skip("no cuda.h, or no C compiler")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", f"-I{header}", "-o", str(tmp_path / "libcuda.so.1"), str(STUB)], check=True
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[15.0, 20.0]\n"  # the stub copies the source: 1 + .. + 5, 2 + .. + 6
    for rank in (0, 1):
        said = f"cooperative busbw_all_reduce_ll_float32_sum grid 1,1,1 block 512,1,1 shared 0 stream 0x55 rank {rank} of 2"
        assert said in done.stderr
