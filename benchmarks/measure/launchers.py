"""M8: the real launchers, by the tests that start ranks with them on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["PARTS", "launchers_run"]

_TESTS = Path(__file__).parents[2] / "tests" / "launching"
PARTS: Mapping[str, str] = {
    "Slurm": "test_slurm",
    "Open MPI": "[openmpi]",
    "MPICH": "[mpich]",
    "torchrun": "test_torchrun_with",
    "manifests": "test_kubernetes",
    "Ansible": "test_ansible",
}
"""Part, and what the names of its tests hold."""


def launchers_run(options: Options) -> Measured:
    """How many of the parts ran here, every test of theirs, and passed."""
    with tempfile.TemporaryDirectory(prefix="busbw-m8-") as folder:
        report = Path(folder) / "report.xml"
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        slow = {} if options.smoke else {"BUSBW_SLOW_TESTS": "ON"}
        ran = subprocess.run(
            [*argv, str(_TESTS / "test_real_launchers.py"), str(_TESTS / "test_kubernetes.py")],
            cwd=_TESTS.parents[1], env=os.environ | slow, capture_output=True, text=True, timeout=900, check=False,
        )  # fmt: skip
        if not report.exists():
            raise NotMeasurableError(f"pytest did not run: {ran.stdout[-300:]}{ran.stderr[-300:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    holds, notes = {}, []
    for part, mark in PARTS.items():
        own = [case for case in cases if mark in f"{case.get('classname')}.{case.get('name')}"]
        failed = [
            case.get("name") for case in own if case.find("failure") is not None or case.find("error") is not None
        ]
        skipped = [case.find("skipped") for case in own if case.find("skipped") is not None]
        # A test that takes long is left out of a smoke run; a part of which nothing ran has not been shown.
        holds[part] = float(bool(own) and not failed and len(skipped) < len(own) and (options.smoke or not skipped))
        why = f"failed: {', '.join(map(str, failed))}" if failed else "; ".join(_reason(one) for one in skipped)
        notes.append(
            f"{part}: {len(own) - len(skipped) - len(failed)} of {len(own)} passed{f' ({why})' if why else ''}"
        )
    return Measured(sum(holds.values()), holds, note="; ".join(notes))


def _reason(skipped: ElementTree.Element | None) -> str:
    return "" if skipped is None else str(skipped.get("message"))
