"""The whole answer: order of findings, verdict, JSON, evidence texts, and what must not change it."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.diagnosis import explain, to_json
from busbw.diagnosis.rules.desync import EFFECTS
from busbw.readers import find_artefacts

from .case_files import Report, explained, reports
from .told import kinds_of, told, told_exactly

OUT_OF_MEMORY = "cn31:2214:2290 [5] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 10485760 bytes\n"
SHM_FAILED = "cn32:3310:3377 [1] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ab12Cd (size 33030656)\n"
CLOSED = "cn33:118:140 [2] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer cn31.cluster<33514>\n"
STAGED = """\
cn21:880:931 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
cn22:774:812 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/0
"""
REMAPPED = "[1209331.104] NVRM: Xid (PCI:0000:4e:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.\n"
every_report = pytest.mark.parametrize("report", reports(), ids=str)


# --- order --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", list(itertools.permutations("abc")), ids="".join)
def test_a_closed_connection_never_outranks_a_cause(names: tuple[str, str, str]):
    """Whatever the order of the files."""
    files = dict(zip(names, (CLOSED, OUT_OF_MEMORY, CLOSED.replace("cn33", "cn34")), strict=True))
    assert kinds_of(told(files))[0] == "gpu-oom"


def _has_a_cause(report: Report) -> bool:
    first = explained(report).diagnosis.findings[:1]
    return bool(first) and first[0].severity != "minor" and first[0].kind != "peer-process-died"


@pytest.mark.parametrize("report", [report for report in reports() if _has_a_cause(report)], ids=str)
def test_a_closed_connection_outranks_no_cause_of_a_report(report: Report):
    """However unsure the cause is: error 12 alone has four."""
    found = told_exactly({**dict(report.files), "0-other-host.log": CLOSED * 3})
    assert kinds_of(found)[0] == kinds_of(explained(report))[0]


@pytest.mark.parametrize(
    ("earlier", "later", "kind"), [(OUT_OF_MEMORY, SHM_FAILED, "gpu-oom"), (SHM_FAILED, OUT_OF_MEMORY, "shm-too-small")]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_failure_in_time_comes_first(earlier: str, later: str, kind: str, reverse: bool):
    """Two causes of equal weight on two hosts; the files' names say nothing."""
    texts = [f"[2026-03-02 11:20:01] {earlier}", f"[2026-03-02 11:20:09] {later}"]
    found = told(dict(zip(("a.log", "b.log"), reversed(texts) if reverse else texts, strict=True)))
    assert kinds_of(found) == [kind, *({"gpu-oom", "shm-too-small"} - {kind})]


def test_what_ends_a_job_comes_before_what_slows_it():
    """The slow path is the surer finding (one host of two), and yet not what the user asks about."""
    assert kinds_of(told(STAGED)) == ["gdr-peermem-missing"]
    assert kinds_of(told(STAGED + OUT_OF_MEMORY)) == ["gpu-oom", "gdr-peermem-missing"]


@every_report
def test_a_kind_is_named_once_with_a_probability(report: Report):
    findings = explained(report).diagnosis.findings
    assert len({finding.kind for finding in findings}) == len(findings)
    assert all(
        0 < finding.confidence < 1 and finding.evidence and finding.remedy and finding.summary for finding in findings
    )


@every_report
def test_a_line_is_evidence_or_cleared_and_not_both(report: Report):
    diagnosis = explained(report).diagnosis
    blamed = {(line.path, line.line) for finding in diagnosis.findings[:3] for line in finding.evidence}
    assert not blamed & {(line.path, line.line) for cleared in diagnosis.cleared for line in cleared.evidence}


def test_an_effect_beside_its_cause_is_a_weak_finding():
    cause, effect = told(OUT_OF_MEMORY + CLOSED).diagnosis.findings
    assert "nccl.peer_closed" in EFFECTS
    assert (cause.kind, effect.kind) == ("gpu-oom", "peer-process-died")
    assert effect.confidence < cause.confidence / 2


# --- verdict ------------------------------------------------------------------------------------------------------------------


def test_healthy_needs_something_that_was_checked():
    diagnosis = told(
        "cn17:611:640 [0] NCCL INFO Using network IB\ncn17:611:640 [0] NCCL INFO Connected all rings\n"
    ).diagnosis
    assert diagnosis.verdict == "healthy"
    assert diagnosis.findings == [] and diagnosis.checks


@pytest.mark.parametrize("text", ["hello\n", "", "\n\n", "\0" * 4096, "step 12 loss 3.14\n", REMAPPED])
def test_unknown_where_nothing_was_found_and_nothing_checked(text: str):
    assert told({"a.txt": text}).diagnosis.verdict == "unknown"


def test_no_file_at_all_is_unknown():
    assert explain([]).diagnosis.verdict == "unknown"


def test_minor_findings_are_not_faulty():
    diagnosis = told("export NCCL_ALGO=Tree\n").diagnosis
    assert [finding.severity for finding in diagnosis.findings] == ["minor"]
    assert diagnosis.verdict == "unknown"


@pytest.mark.parametrize("text", [OUT_OF_MEMORY, STAGED])
def test_fatal_and_major_findings_are_faulty(text: str):
    assert told(text).diagnosis.verdict == "faulty"


def test_an_xid_that_is_a_repair_is_cleared_with_its_reason():
    (cleared,) = told(REMAPPED).diagnosis.cleared
    assert cleared.why and [line.text for line in cleared.evidence] == [REMAPPED.rstrip()]


# --- JSON ---------------------------------------------------------------------------------------------------------------------


@every_report
def test_the_json_shape_is_schema_1(report: Report):
    shape = json.loads(json.dumps(to_json(explained(report).diagnosis)))
    assert list(shape) == ["schema", "verdict", "findings", "cleared", "checks", "losses", "read"]
    assert shape["schema"] == 1
    assert shape["verdict"] in ("healthy", "faulty", "unknown")
    for finding in shape["findings"]:
        assert list(finding) == [
            "kind", "family", "confidence", "severity", "layer", "summary", "evidence", "remedy", "distinguish",
        ]  # fmt: skip
        assert finding["evidence"]
    for entry in [*shape["findings"], *shape["cleared"], *shape["checks"]]:
        for line in entry["evidence"]:
            assert list(line) == ["path", "line", "text"]
            assert line["line"] >= 1
    assert all(list(loss) == ["kind", "path", "line", "detail", "count"] for loss in shape["losses"])
    assert [Path(entry["path"]).name for entry in shape["read"]] == sorted(name for name, _ in report.files)
    assert all(list(entry) == ["path", "size_bytes", "formats"] for entry in shape["read"])


# --- evidence texts -----------------------------------------------------------------------------------------------------------


@every_report
def test_evidence_is_the_line_of_the_file(report: Report):
    files = dict(report.files)
    for finding in explained(report).diagnosis.findings:
        for shown in finding.evidence:
            line = files[Path(shown.path).name].split("\n")[shown.line - 1].rstrip("\r")
            assert shown.text == (line if len(line) <= 600 else f"{line[:599]}…")


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), max_size=200)
)  # NUL: a file with many of them is binary
def test_evidence_shows_no_control_and_no_direction_characters(junk: str):
    (finding,) = told_exactly({"a.log": f"\x1b[31m{OUT_OF_MEMORY.rstrip()} {junk}\x1b[0m\n"}).diagnosis.findings
    text = finding.evidence[0].text
    assert text.startswith(OUT_OF_MEMORY.rstrip())
    assert not {character for character in text if unicodedata.category(character) == "Cc"} - {"\t"}
    assert not {
        character
        for character in text
        if unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    }


def test_evidence_shows_no_escape_sequence():
    """Colours, a window title, a link, an 8-bit CSI."""
    for sequence in ("\x1b[1;31m", "\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1bM", "\x9b", "\u200f", "\u061c"):
        (finding,) = told_exactly({"a.log": f"{sequence}{OUT_OF_MEMORY}"}).diagnosis.findings
        assert finding.evidence[0].text == OUT_OF_MEMORY.rstrip()


def test_evidence_shows_no_secret():
    token = "hf_" + "abcdefghijklmnop" * 2
    (finding,) = told(
        f"{OUT_OF_MEMORY.rstrip()} HF_TOKEN={token} url https://user:pass-word@registry\n"
    ).diagnosis.findings
    assert token not in finding.evidence[0].text
    assert "pass-word" not in finding.evidence[0].text


@pytest.mark.parametrize("length", [700, 5_000, 100_000])
def test_evidence_is_bounded(length: int):
    (finding,) = told(OUT_OF_MEMORY.rstrip() + " " + "x" * length + "\n").diagnosis.findings
    assert len(finding.evidence[0].text) == 600
    assert finding.evidence[0].text.endswith("…")


def test_a_file_that_vanished_keeps_its_place():
    """The lines were read before; only their text is gone."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.log"
        file.write_text(OUT_OF_MEMORY)
        artefacts, _ = find_artefacts([folder])
        (finding,) = explain(artefacts, progress=lambda _: file.unlink()).diagnosis.findings
    assert [(line.line, line.text) for line in finding.evidence] == [(1, "")]


# --- what changes nothing -----------------------------------------------------------------------------------------------------


def _other_hosts(text: str) -> str:
    """The same text with every host called otherwise, in the reverse order."""
    return re.sub(r"\b(?:host|gpu|pod)(\d+)\b(?!\.so)", lambda match: f"cn{999 - int(match[1])}", text)


@every_report
def test_renaming_hosts_changes_no_kind(report: Report):
    assert kinds_of(told_exactly({name: _other_hosts(text) for name, text in report.files})) == kinds_of(
        explained(report)
    )


@every_report
def test_the_order_of_files_changes_no_verdict_and_no_kind(report: Report):
    first = explained(report)
    for names in list(itertools.permutations(f"{i}.txt" for i in range(len(report.files))))[1:]:
        other = told_exactly({name: text for name, (_, text) in zip(names, report.files, strict=True)})
        assert other.diagnosis.verdict == first.diagnosis.verdict
        assert sorted(kinds_of(other)) == sorted(kinds_of(first))
        assert kinds_of(other)[:1] == kinds_of(first)[:1]


UNRELATED = {
    "training": "step 100 loss 2.31 lr 3e-4 tokens/s 41200\nstep 200 loss 2.22 lr 3e-4 tokens/s 41180\n",
    "log": "cn17:611:640 [0] NCCL INFO comm 0x5a10 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0\ncn17:611:640 [0] NCCL INFO Connected all rings\n",
    "empty": "",
    "disk": "Filesystem      Size  Used Avail Use% Mounted on\n/dev/sda2       879G  412G  423G  50% /\n",
    "gpus": "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-000000000000)\n",
    "nic": "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n",
}


@pytest.mark.parametrize("kind", UNRELATED)
@every_report
def test_a_healthy_file_beside_it_removes_no_first_finding(report: Report, kind: str):
    found = kinds_of(told_exactly({**dict(report.files), "zz-unrelated.txt": UNRELATED[kind]}))
    assert found[:1] == kinds_of(explained(report))[:1]


PREFIXES = {
    "mpirun": lambda _: "[1,3]<stdout>:",
    "srun": lambda _: "3: ",
    "torchrun": lambda _: "[rank3]: ",
    "container": lambda i: f"2026-01-02T03:{i // 60 % 60:02}:{i % 60:02}.678Z ",
    "colour": lambda _: "\x1b[32m",
    "colour and tag": lambda _: "\x1b[36m[1,3]<stderr>:\x1b[0m",
}


@pytest.mark.parametrize("prefix", PREFIXES)
@every_report
def test_what_launchers_put_in_front_changes_no_kind(report: Report, prefix: str):
    """Of output, that is: a document such as a topology file is not printed through a launcher."""
    files = {}
    for name, text in report.files:
        lines = text.split("\n")
        put = [
            PREFIXES[prefix](i) + line + ("\x1b[0m" if prefix == "colour" else "") for i, line in enumerate(lines[:-1])
        ]
        files[name] = text if text.lstrip().startswith("<") else "\n".join([*put, lines[-1]])
    found = told_exactly(files)
    assert sorted(kinds_of(found)) == sorted(kinds_of(explained(report)))
    assert found.diagnosis.verdict == explained(report).diagnosis.verdict


@given(st.data())
def test_a_file_cut_anywhere_is_still_explained(data: st.DataObject):
    """A job that was killed leaves half a line."""
    report = data.draw(st.sampled_from(reports()))
    files = dict(report.files)
    cut = data.draw(st.sampled_from(sorted(files)))
    files[cut] = files[cut][: data.draw(st.integers(0, len(files[cut])))]
    assert told_exactly(files).diagnosis.verdict in ("healthy", "faulty", "unknown")


@every_report
def test_a_file_cut_at_any_line_is_still_explained(report: Report):
    for name, text in report.files:
        lines = text.splitlines(keepends=True)
        for keep in range(0, len(lines), max(1, len(lines) // 8)):
            assert told_exactly({**dict(report.files), name: "".join(lines[:keep])}).diagnosis.verdict


EVERY_LINE = sorted({line for report in reports() for _, text in report.files for line in text.split("\n")})


@given(st.lists(st.sampled_from(EVERY_LINE) | st.text(max_size=60), max_size=60))
def test_any_mixture_of_lines_is_explained(lines: list[str]):
    diagnosis = told_exactly({"a.txt": "\n".join(lines)}).diagnosis
    assert all(finding.evidence for finding in diagnosis.findings)
