"""The wheel, built here and installed where nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

__all__ = ["demo_runs_from_a_wheel"]


def demo_runs_from_a_wheel(repository: Path, *, borrow_dependencies: bool = False) -> bool:
    """Whether `busbw demo` ends well and writes its report, installed from a wheel into a new virtual environment.

    borrow_dependencies: take those of this process's environment instead of installing them anew. Raises RuntimeError with what pip
    said if the wheel cannot be built or installed.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        _pip([sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(scratch), str(repository)])
        wheel = next(scratch.glob("*.whl"))
        environment = scratch / "venv"
        venv.create(environment, with_pip=True)
        options = ["--no-deps"] if borrow_dependencies else []
        _pip([str(environment / "bin" / "python"), "-m", "pip", "install", *options, str(wheel)])
        if borrow_dependencies:
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            site = environment / "lib" / version / "site-packages"
            (site / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        elsewhere = scratch / "elsewhere"
        elsewhere.mkdir()
        command = [str(environment / "bin" / "busbw"), "demo", "--report", "demo.html"]
        done = subprocess.run(command, cwd=elsewhere, env=_environment(scratch), capture_output=True, check=False)
        return done.returncode == 0 and (elsewhere / "demo.html").stat().st_size > 0


def _pip(command: list[str]) -> None:
    done = subprocess.run([*command, "-q"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:4])} failed: {done.stderr.strip()[-500:]}")


def _environment(home: Path) -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": str(home), "LC_ALL": "C.UTF-8"}
