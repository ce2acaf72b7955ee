"""Libraries that do not fit together, are not the ones meant, or have a known defect."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from busbw.diagnosis.facts import Event, Facts, lines_of
from busbw.diagnosis.findings import Finding, Severity
from busbw.diagnosis.rules.shared import whole

__all__ = ["RULES", "KnownBug", "known_bugs"]


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A defect of a library: the message that shows it, the versions that have it, the one that does not."""

    id: str
    event: str
    contains: str
    first_bad: tuple[int, ...] | None
    fixed_in: tuple[int, ...] | None
    severity: Severity
    summary: str
    remedy: str
    source: str
    version_needed: bool
    """Whether the message has other causes too, so that the version must be known to be a bad one."""


@functools.cache
def known_bugs() -> tuple[KnownBug, ...]:
    """The table known_bugs.json."""

    def version(text: str | None) -> tuple[int, ...] | None:
        return tuple(int(n) for n in text.split(".")) if text else None

    rows = json.loads(files("busbw.diagnosis").joinpath("known_bugs.json").read_text("utf-8"))["bugs"]
    return tuple(
        KnownBug(
            r["id"], r["event"], r.get("contains", ""), version(r.get("first_bad")), version(r.get("fixed_in")), r["severity"], r["summary"],
            r["remedy"], r["source"], r.get("version_needed", False),
        )
        for r in rows
    )  # fmt: skip


def known_bug(facts: Facts) -> Iterator[Finding]:
    """A message of a defect that a release has fixed (table known_bugs.json, a source a row).

    Fires when the message is there and the NCCL version, if known, lies in the bad range. Silent for versions outside it, and for
    messages with other causes as long as the version is unknown.
    """
    versions = facts.nccl_versions()
    for bug in known_bugs():
        events = [
            e
            for e in (facts.events.get(bug.event, []) if bug.event else facts.unknown_warnings)
            if bug.contains.lower() in e.text.lower()
        ]
        if not events:
            continue
        bad = [
            e for v, e in versions
            if (bug.first_bad is None or v >= bug.first_bad) and (bug.fixed_in is None or v < bug.fixed_in)
        ]  # fmt: skip
        if (versions and not bad) or (bug.version_needed and not bad):
            continue
        yield Finding(
            "library-bug-version", 0.85 if bad else 0.7, bug.severity, bug.summary, lines_of([*events, *bad]), f"{bug.remedy} ({bug.source})",
            ["grep 'NCCL version' in the log of rank 0"],
        )  # fmt: skip


_COMMUNICATION_LIBRARY = re.compile(
    r"nccl|libfabric|\bfi_|\bofi|efa|uc[xmpst]|ibv_|ibverbs|mlx5|rdma|mscclpp|nvshmem|nixl|sharp|hcoll|open-?mpi|libmpi|opal_|gdrapi",
    re.IGNORECASE,
)


def plugin_against_older_library(facts: Facts) -> Iterator[Finding]:
    """A plugin was built for another version of a library beneath it.

    Fires on an option that libfabric refuses (aws-ofi-nccl), an undefined symbol or a missing symbol version when a plugin is loaded.
    Silent when a plugin is simply absent ("cannot open shared object file"), and on symbols of libraries that communicate nothing.
    """
    refused = facts.all("ofi.option_refused")
    symbols = [
        e for e in facts.all("system.undefined_symbol", "system.library_symbol_version")
        if not e.fields.get("symbol", "").strip("\"'").startswith(("nccl", "pnccl")) and _COMMUNICATION_LIBRARY.search(e.text)
    ]  # fmt: skip
    loads = [
        e for e in facts.all("nccl.net_plugin_absent", "nccl.net_plugin_load_failed")
        if any(word in e.text for word in ("undefined symbol", "version `", "GLIBC", "wrong ELF"))
    ]  # fmt: skip
    if refused or symbols or loads:
        yield Finding(
            "plugin-library-version-mismatch", 0.8, "fatal", "a plugin and the library beneath it are of different versions",
            lines_of([*refused, *loads, *symbols, *facts.all("ofi.version")]),
            "Load the library the plugin was built with (LD_LIBRARY_PATH, remove the distribution's copy), or rebuild the plugin.",
            ["ldd libnccl-net.so; fi_info --version", "grep lib /proc/PID/maps of a running rank"],
        )  # fmt: skip


def several_nccl(facts: Facts) -> Iterator[Finding]:
    """The NCCL that runs is not the one that is installed.

    Fires when a package's version differs from what the program reports, or several libnccl.so of different versions lie about.
    Silent when installed and in use are one version, and on other packages.
    """
    packages = list(facts.all("system.package_version", "system.package_listed"))
    if facts.all("system.package_version") and not facts.all("system.package_name"):
        packages = facts.all("system.package_listed")
    installed = {_version(e) for e in packages}
    running = facts.all("system.torch_nccl_version")
    loaded = {_version(e) for e in running} | {v for v, _ in facts.nccl_versions()}
    on_disk = [e for e in facts.all("system.library_file", "system.library_link") if len(_version(e)) >= 3]
    lacking = [
        e
        for e in facts.all("system.undefined_symbol")
        if e.fields.get("symbol", "").strip("\"'").startswith(("nccl", "pnccl"))
    ]
    lacking += facts.all("nccl.library_too_old")
    if lacking:
        yield Finding(
            "wrong-nccl-loaded", 0.85, "fatal", "the NCCL that is loaded lacks what the program was built for", lines_of([*lacking, *on_disk, *packages]),
            "Put the NCCL that the program was built with first (LD_LIBRARY_PATH or LD_PRELOAD), remove older ones.", ["ldd PROGRAM | grep nccl", "NCCL_DEBUG=VERSION"],
        )  # fmt: skip
        return
    lines = lines_of(
        [
            *running,
            *packages,
            *on_disk,
            *facts.all("system.library_file", "system.library_loaded"),
            *(e for _, e in facts.nccl_versions()),
        ]
    )
    if installed and loaded and not installed & loaded:
        yield Finding(
            "wrong-nccl-loaded", 0.9, "minor", f"installed is {_text(installed)}, in use is {_text(loaded)}", lines,
            "Put the wanted library first (LD_LIBRARY_PATH or LD_PRELOAD) or remove the others.",
            ["grep libnccl /proc/PID/maps of a running rank", "NCCL_DEBUG=VERSION"],
        )  # fmt: skip
    elif len({_version(e) for e in on_disk} | installed) > 1:
        yield Finding(
            "wrong-nccl-loaded", 0.6, "minor", "several NCCL of different versions can be loaded", lines,
            "Remove all but one, or choose by LD_LIBRARY_PATH.", ["NCCL_DEBUG=VERSION prints the one in use"],
        )  # fmt: skip


def ucx_lacks_cuda(facts: Facts) -> Iterator[Finding]:
    """UCX says that it was built without CUDA or RDMA.

    Fires on the messages themselves and on a configure line (`ucx_info -v`) with --without-cuda.
    Silent on a UCX configured with CUDA.
    """
    events = facts.all("ucx.no_cuda", "nixl.no_rdma")
    bare = [e for e in facts.all("ucx.configured") if "--with-cuda" not in e.text and "--without-cuda" in e.text]
    if events or bare:
        yield Finding(
            "ucx-built-without-feature", 0.8, "major", "this UCX has no support for GPU memory or RDMA", lines_of([*events, *bare]),
            "Use a UCX configured --with-cuda --with-verbs; check ucx_info -v.", ["ucx_info -v", "ucx_info -d | grep Transport"],
        )  # fmt: skip


def _version(event: Event) -> tuple[int, ...]:
    fields = event.fields
    if "major" in fields and "minor" in fields:
        return tuple(n for key in ("major", "minor", "patch") if (n := event.number(key)) is not None)
    text = fields.get("version") or fields.get("target", "").rsplit(".so.", 1)[-1]
    return tuple(n for part in text.split("-")[0].split(".") if (n := whole(part)) is not None)


def _text(versions: set[tuple[int, ...]]) -> str:
    return ", ".join(".".join(map(str, v)) for v in sorted(versions))


def unexplained_cuda_failure(facts: Facts) -> Iterator[Finding]:
    """A CUDA call of NCCL failed with an error that says nothing about why, and nothing else was read that does.

    Fires on "invalid argument", "unknown error" and the like without source file and without any more telling error. The candidates are
    weak on purpose; the log of the rank that failed first decides. Silent when any other rule knows the error.
    """
    vague = [
        e
        for text, e in facts.cuda_errors()
        if text.strip()
        in ("invalid argument", "unknown error", "unspecified launch failure", "invalid resource handle")
        and not e.file
    ]
    telling = facts.all(
        "nccl.shm_failed", "nccl.nvls_register_failed", "kernel.xid", "cuda.peer_unsupported", "nccl.nvls_bind_failed"
    )
    if vague and not telling:
        lines = lines_of(vague)
        tell = [
            "NCCL_DEBUG=INFO: the WARN line with its source file, on the rank that fails first",
            "dmesg | grep -i xid",
            "the same run with another NCCL version",
        ]
        yield Finding(
            "library-bug-version",
            0.35,
            "fatal",
            "a CUDA call inside NCCL failed without saying why",
            lines,
            "Take NCCL_DEBUG=INFO of all ranks; try another NCCL version.",
            tell,
        )
        yield Finding(
            "p2p-unsupported-misdetected",
            0.2,
            "fatal",
            "an IPC or peer mapping may have failed",
            lines,
            "Try NCCL_P2P_DISABLE=1 as a test.",
            tell,
        )
        yield Finding(
            "fabric-manager-state",
            0.15,
            "fatal",
            "NVSwitch multicast may be broken",
            lines,
            "Try NCCL_NVLS_ENABLE=0 as a test.",
            tell,
        )


RULES = (unexplained_cuda_failure, known_bug, plugin_against_older_library, several_nccl, ucx_lacks_cuda)
