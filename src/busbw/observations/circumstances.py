"""Under which circumstances something is measured here: variables, versions, the state of the source, the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from busbw.observations.secrets import is_allowed_variable, redact_text

__all__ = ["Circumstances"]

_GIT_WAIT_S = 5.0
_PACKAGES = ("busbw", "numpy", "mpi4py", "torch", "cuda-bindings", "nixl")
"""Python packages whose version may change what a back end does."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What may explain why two runs differ. Secrets have no place here: variables are kept by allow-list, texts redacted."""

    host: str | None = None
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """By what: "busbw", "Linux", "NCCL"."""
    topology: str | None = None
    """A hash of the machine's topology, so that two runs can be seen to have had the same."""
    git_commit: str | None = None
    git_changed: bool | None = None
    """Whether files that git follows differ from the commit."""

    @classmethod
    def here(
        cls, *, argv: Sequence[str] | None = None, versions: Mapping[str, str] | None = None, topology: str | None = None,
        folder: Path | None = None,
    ) -> Circumstances:  # fmt: skip
        """Those of this process. argv: its own if None. versions: added to those found. folder: whose git is asked; the current one if None."""
        commit, changed = _git(folder or Path.cwd())
        found = {"Python": platform.python_version(), platform.system(): platform.release(), **_package_versions()}
        return cls(
            host=platform.node() or None,
            argv=tuple(sys.argv if argv is None else argv),
            environment=dict(os.environ),
            versions=found | dict(versions or {}),
            topology=topology,
            git_commit=commit,
            git_changed=changed,
        ).redacted()

    def redacted(self) -> Circumstances:
        """The same without variables that are not on the allow-list, and with secrets in texts blanked."""
        allowed = {
            name: redact_text(value) for name, value in sorted(self.environment.items()) if is_allowed_variable(name)
        }
        return Circumstances(
            self.host, tuple(redact_text(word) for word in self.argv), allowed,
            {name: redact_text(value) for name, value in self.versions.items()}, self.topology, self.git_commit, self.git_changed,
        )  # fmt: skip


def _package_versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(folder: Path) -> tuple[str | None, bool | None]:
    """Commit and whether files differ from it; None where git is missing, slow, or the folder is none of its."""
    try:
        commit = _git_says(folder, "rev-parse", "HEAD")
        return commit.strip(), bool(_git_says(folder, "status", "--porcelain", "--untracked-files=no").strip())
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git_says(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=_GIT_WAIT_S, check=True).stdout
