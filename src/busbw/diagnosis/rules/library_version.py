"""Libraries that do not fit together, are not the ones meant, or have a known defect."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, get_args

from busbw.diagnosis.facts import Event, Facts, Setting, lines_of
from busbw.diagnosis.findings import Finding, Severity
from busbw.diagnosis.rules.shared import whole

__all__ = ["RULES", "KnownBug", "known_bugs"]


Version = tuple[int, ...]
LIBRARIES = ("nccl", "ucx", "aws-ofi-nccl", "libfabric", "nvidia-driver")
"""Libraries whose versions logs tell."""


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A defect of a library: what an affected log shows, the versions that have it, the first that does not."""

    id: str
    library: str
    events: tuple[str, ...]
    """Names of messages that may show it; an empty one stands for NCCL warnings without a name."""
    text: re.Pattern[str]
    """What one of them must hold."""
    setting: tuple[re.Pattern[str], re.Pattern[str]] | None
    """Name and value that a variable must match besides; None: no variable matters."""
    first_bad: Version | None
    fixed_in: Version | None
    """None: no fixed release is known."""
    version_needed: bool
    """Whether the message has other causes too, so that the version must be known to be a bad one."""
    severity: Severity
    confidence: float
    """Probability that the defect is the cause where message and version agree."""
    summary: str
    remedy: str
    source: str

    def __post_init__(self) -> None:
        """Raises ValueError for a row that cannot fire or does not say where it comes from: a slip of whoever edited the table."""
        where = f"known_bugs.json, {self.id}"
        if self.library not in LIBRARIES or not self.events:
            raise ValueError(f"{where}: library must be one of {', '.join(LIBRARIES)}, and events must name a message")
        if self.first_bad is not None and self.fixed_in is not None and self.first_bad >= self.fixed_in:
            raise ValueError(f"{where}: first_bad must be lower than fixed_in")
        if self.fixed_in is None and not self.version_needed:
            raise ValueError(f"{where}: without a fixed release the version must be needed")
        if self.severity not in get_args(Severity) or not 0 < self.confidence <= 1:
            raise ValueError(f"{where}: severity or confidence is none")
        if not all((self.id, self.summary, self.remedy, self.source)):
            raise ValueError(f"{where}: id, summary, remedy and source must all say something")

    def affects(self, version: Version) -> bool:
        """Whether this version has the defect."""
        return (self.first_bad is None or version >= self.first_bad) and (
            self.fixed_in is None or version < self.fixed_in
        )


@functools.cache
def known_bugs() -> tuple[KnownBug, ...]:
    """The table known_bugs.json. Raises ValueError for rows that are wrong or there twice."""
    rows = json.loads(files("busbw.diagnosis").joinpath("known_bugs.json").read_text("utf-8"))["bugs"]
    bugs = tuple(_bug(row) for row in rows)
    for what in ({bug.id for bug in bugs}, {(bug.library, bug.text.pattern, bug.events, bug.setting) for bug in bugs}):
        if len(what) < len(bugs):
            raise ValueError("known_bugs.json: an id or a signature is there twice; merge the rows")
    return bugs


def _bug(row: Mapping[str, Any]) -> KnownBug:
    name, value = row.get("setting", (None, None))
    made = {
        **row,
        "events": tuple(row["events"]),
        "text": re.compile(row["text"]),
        "setting": None if name is None else (re.compile(name), re.compile(value)),
        "first_bad": _numbers(row["first_bad"]) if row["first_bad"] else None,
        "fixed_in": _numbers(row["fixed_in"]) if row["fixed_in"] else None,
    }
    return KnownBug(**made)


def _numbers(text: str) -> Version:
    """The numbers of a version such as `2.27.3+cuda12.9` or `1.9.1-aws`; empty if it begins with none."""
    match = re.match(r"v?(\d{1,9}(?:\.\d{1,9}){0,3})", text)
    return tuple(int(n) for n in match[1].split(".")) if match else ()


def _versions(facts: Facts, library: str) -> list[tuple[Version, Event]]:
    """Every version of a library that was read, with its line. RCCL prints NCCL's number too, but has defects of its own."""
    found: list[tuple[str, Event]] = []
    if library == "nccl":
        found = [(e.fields.get("version", ""), e) for e in facts.all("nccl.version") if "hip" not in e.text.lower()]
        for event in facts.all("nccl.result_text"):
            said = re.search(r"NCCL version (\S+)", event.text)
            found += [(said[1], event)] if said else []
    elif library == "ucx":
        found = [(e.fields.get("version", ""), e) for e in facts.all("ucx.version")]
    elif library == "nvidia-driver":
        found = [(e.fields.get("version", ""), e) for e in facts.all("driver.version")]
    else:
        word = {"aws-ofi-nccl": "aws-ofi-nccl", "libfabric": "Libfabric version"}[library]
        found = [(e.fields.get("version", ""), e) for e in facts.all("ofi.version") if word in e.text]
    return [(numbers, event) for text, event in found if (numbers := _numbers(text))]


def known_bug(facts: Facts) -> Iterator[Finding]:
    """A message of a defect that a release has fixed (table known_bugs.json, a source a row).

    Fires when the message is there and the library's version, if known, lies in the bad range. Silent for versions outside it, and for
    messages with other causes as long as the version is unknown. Minor rows are remarks: a message that misleads, a limit that slows.
    """
    for bug in known_bugs():
        events = [
            e
            for name in bug.events
            for e in (facts.events.get(name, ()) if name else facts.unknown_warnings)
            if bug.text.search(e.text)
        ]
        if not events:
            continue
        settings: list[Setting] = []
        if bug.setting is not None:
            name, value = bug.setting
            settings = [
                s for s in facts.settings if s.origin != "note" and name.fullmatch(s.name) and value.fullmatch(s.value)
            ]
            if not settings:
                continue
        versions = _versions(facts, bug.library)
        bad = [e for v, e in versions if bug.affects(v)]
        if not bad and (versions or bug.version_needed):
            continue
        yield Finding(
            "library-bug-version", bug.confidence if bad else bug.confidence * _VERSION_UNKNOWN, bug.severity, f"{bug.library}: {bug.summary}",
            lines_of([*events, *settings, *bad]), f"{bug.remedy} ({bug.source})", [_TELL[bug.library]],
        )  # fmt: skip


_VERSION_UNKNOWN = 0.82
"""How much surer a known version makes a defect. A guess."""
_TELL = {
    "nccl": "grep 'NCCL version' in the log of rank 0",
    "ucx": "ucx_info -v; grep libuct /proc/PID/maps of a running rank",
    "aws-ofi-nccl": "grep 'Initializing aws-ofi-nccl' in the log (NCCL_DEBUG=INFO)",
    "libfabric": "fi_info --version",
    "nvidia-driver": "cat /proc/driver/nvidia/version",
}
"""What tells the version of a library."""

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


_HOPPER = (2, 15, 1)
"""The first NCCL that knows Hopper's NVLink (NVIDIA/nccl, release notes of 2.15.1)."""


def links_seen_from_one_end(facts: Facts) -> Iterator[Finding]:
    """NCCL sees a link between two devices from one end only and gives up.

    Fires on "Failed to find reverse path" (src/graph/paths.cc). NVLinks that are down at one end do it, a driver that reports them wrongly (535.161.08,
    NVIDIA/nccl#1253), a virtual machine's topology, and an NCCL older than the GPU. Surer of the last when the version printed is below 2.15.1.
    Silent when the topology was taken in.
    """
    said = facts.all("nccl.reverse_path_missing")
    if not said:
        return
    old = [e for v, e in _versions(facts, "nccl") if v < _HOPPER]
    lines = lines_of([*said, *old])
    tell = [
        "nvidia-smi nvlink -s on this node",
        "the same run with a current NCCL",
        "grep 'NCCL version' in the log of rank 0",
    ]
    for kind, confidence, summary, remedy in (
        ("library-bug-version", 0.55 if old else 0.35, "NCCL or the driver reports NVLinks of this machine wrongly", "Use an NCCL that knows this GPU (Hopper: 2.15.1 and later) and a current driver."),
        ("nvlink-down", 0.25 if old else 0.4, "an NVLink is up at one end only", "Reset the GPUs or reboot; if a link stays inactive, replace the board."),
        ("vm-topology-file", 0.15, "the topology of a virtual machine may lack one end of a link", "Give NCCL the provider's topology file (NCCL_TOPO_FILE)."),
    ):  # fmt: skip
        yield Finding(kind, confidence, "fatal", summary, lines, remedy, tell)


RULES = (
    links_seen_from_one_end,
    unexplained_cuda_failure,
    known_bug,
    plugin_against_older_library,
    several_nccl,
    ucx_lacks_cuda,
)
