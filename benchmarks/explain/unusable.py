"""Inputs from which nothing can be read: what the command says about them, and what it leaves behind."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.rows import NotMeasurableError

__all__ = ["outcomes"]

_WRONG_USE = 2
_LONGEST_LINE = 300
_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
"""Source: Linux, include/uapi/linux/prctl.h and capability.h."""


def outcomes() -> dict[str, str]:
    """By input, what was not as it should be; empty where all was.

    It should be: exit status 2, one line on stderr that names the input, nothing on stdout, nothing written. Asks
    `busbw explain`, with and without --json, and `busbw read --store`.
    """
    return {name: _problem(make) for name, make in _INPUTS.items()}


def _missing(folder: Path) -> Path:
    return folder / "missing.log"


def _without_files(folder: Path) -> Path:
    (folder / "job" / "rank0").mkdir(parents=True)
    return folder / "job"


def _binary(folder: Path) -> Path:
    file = folder / "core.1234"
    file.write_bytes(bytes(range(256)) * 64)
    return file


def _empty(folder: Path) -> Path:
    file = folder / "empty.log"
    file.touch()
    return file


def _unreadable(folder: Path) -> Path:
    file = folder / "unreadable.log"
    file.write_text("host0:1:1 [0] NCCL INFO Using network IB\n", encoding="utf-8")
    file.chmod(0)
    try:
        readable = subprocess.run(["cat", str(file)], capture_output=True, preexec_fn=_without_privilege, check=False)
    except subprocess.SubprocessError as error:
        raise NotMeasurableError(
            "root reads every file here, and that right cannot be dropped; run as another user"
        ) from error
    if readable.returncode == 0:
        raise NotMeasurableError("a file without permissions can be read here; run as a user who is not root")
    return file


_INPUTS: dict[str, Callable[[Path], Path]] = {
    "missing path": _missing,
    "folder without files": _without_files,
    "binary": _binary,
    "empty": _empty,
    "unreadable": _unreadable,
}


def _problem(make: Callable[[Path], Path]) -> str:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder, home = scratch / "input", scratch / "home"
        folder.mkdir()
        home.mkdir()
        given = make(folder)
        before = _entries(scratch)
        for arguments in (
            ["explain", str(given)],
            ["explain", str(given), "--json"],
            ["read", str(given), "--store", str(home / "store")],
        ):
            done = subprocess.run(
                [sys.executable, "-m", "busbw", *arguments],
                cwd=home,
                env={
                    "PATH": os.defpath,
                    "HOME": str(home),
                    "TMPDIR": str(home),
                    "LC_ALL": "C.UTF-8",
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                preexec_fn=_without_privilege,
                check=False,
            )
            lines = done.stderr.splitlines()
            verb = arguments[0]
            if done.returncode != _WRONG_USE:
                return f"{verb}: exit status {done.returncode}"
            if len(lines) != 1 or given.name not in lines[0] or len(lines[0]) > _LONGEST_LINE:
                return f"{verb}: said {done.stderr!r}"
            if done.stdout:
                return f"{verb}: {len(done.stdout)} characters on stdout"
            if _entries(scratch) != before:
                return f"{verb}: wrote {', '.join(sorted(_entries(scratch) - before))}"
    return ""


def _entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _without_privilege() -> None:
    """In the child: root gives up reading what permissions forbid."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "the right to read every file cannot be dropped")
