"""Running the command inside the test's process, and the small jobs it is run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from busbw.cli import main

SICK = """\
gpu0:22612:22693 [0] NCCL INFO 4 coll channels, 4 p2p channels, 1 p2p channels per peer
gpu0:22612:22693 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [send] via NET/IB/1/GDRDMA
gpu1:52125:52256 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [receive] via NET/IB/0
gpu0:22612:22761 [0] NCCL INFO Channel 00 : 0[7000] -> 12[88000] [send] via NET/IB/1/GDRDMA/Shared
gpu1:52129:52281 [4] NCCL INFO Channel 00 : 0[7000] -> 12[88000] [receive] via NET/IB/5/Shared
"""
"""NVIDIA/nccl-tests#152, one line left out: the second node stages through host memory."""

HEALTHY = """\
#  Rank  0 Group  0 Pid  14840 on host17 device  0 [0x01] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  4294967296    1073741824     float     sum      -1    10094  425.49  839.16      0    10141  423.54  835.32      0
  8589934592    2147483648     float     sum      -1    20299  423.16  834.57      0    20006  429.37  846.82      0
# Out of bounds values : 0 OK
"""
"""coreweave/nccl-tests#43, cut to two rows; the name of the GPU is another."""


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    status: int
    out: str
    err: str


@pytest.fixture
def busbw(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs `busbw` with these arguments."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ran(ended.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def sick_job(tmp_path: Path) -> Path:
    """A folder with one log of a job whose second node lacks nvidia_peermem."""
    folder = tmp_path / "sick"
    folder.mkdir()
    (folder / "nccl.log").write_text(SICK)
    return folder


@pytest.fixture
def healthy_job(tmp_path: Path) -> Path:
    """A folder with one table of a job that is as it should be."""
    folder = tmp_path / "healthy"
    folder.mkdir()
    (folder / "table.txt").write_text(HEALTHY)
    return folder
