"""The HTML report: self-contained, escaped, the same bytes every time."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from busbw.diagnosis import Check, Cleared, Diagnosis, Evidence, Explanation, Facts, Finding, LineRef, kinds
from busbw.diagnosis.facts import Curve, Event, LinkGroup, Pair, Point, Process, Setting
from busbw.errors import InputError, Loss
from busbw.observations import Artefact
from busbw.reports import GENERATOR, excerpts, render_report, visible, write_report

HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> \"' & \x1b[31m \u202e ]]>"


def at(line: int, byte_offset: int = 0, artefact: str = "a", path: str = "job/nccl.log") -> LineRef:
    return LineRef(path, line, byte_offset, artefact)


def empty() -> Explanation:
    return Explanation(Diagnosis("unknown", (), (), (), (), ()), Facts())


def full(text: str = "a line") -> Explanation:
    """Something in every part of the page, with `text` wherever text of a file can come."""
    facts = Facts()
    curve = Curve("nccl-tests", "a", 0, "all_reduce", 8, 1)
    for k in range(10, 31):
        seconds = 20e-6 + 2**k / 200e9
        rate = 2**k / seconds
        point = Point(2**k, round(seconds * 1e9), rate, rate * 1.75, 0.0, False, at(k))
        curve.points.append(point)
    facts.curves.append(curve)
    for k in range(8):
        facts.devices.append(("n0", "NVIDIA H100 80GB HBM3", at(1)))
        process = facts.processes.setdefault(("n0", 100 + k), Process("n0", 100 + k, {k}, {k}))
        process.events.append(Event("nccl.version", at(2), text, fields={"version": "2.19.3"}))
        facts.links.append(LinkGroup("n0", 100 + k, k, "send", "NET/IB/0" + "/GDRDMA" * (k != 3), at(3), 4, k, 0))
        facts.settings.append(Setting("NCCL_IB_HCA", text if k == 5 else "mlx5_0", "environment", at(4), "n0", 100 + k))
    for src in range(4):
        for dst in range(4):
            facts.pairs.append(
                Pair("p2p", "bandwidth", f"{text}{src}", f"{text}{dst}", 24e9 / (1 + src), "bytes/s", at(5))
            )
    evidence = (Evidence("job/nccl.log", 3, text),)
    finding = Finding(
        "gdr-peermem-missing", 0.9, "major", text, (at(3),), text, (text,), "rule", evidence
    )  # fmt: skip
    cleared = Cleared(text, text, (at(3),), evidence)
    check = Check(text, text, (at(3),), evidence)
    loss = Loss("truncated-row", text, 3, text, 2)
    return Explanation(
        Diagnosis("faulty", (finding,), (cleared,), (check,), (loss,), ((text, 100, ("nccl-log",)),)), facts
    )  # fmt: skip


class Elements(HTMLParser):
    """Names of elements and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("explanation", [empty(), full(), full(HOSTILE)], ids=["empty", "full", "hostile"])
def test_the_page_asks_nobody_for_anything(explanation):
    """No element that fetches, no address, no handler, no script but the page's own; a policy that forbids them all the same."""
    text = render_report(explanation)
    page = Elements(text)
    assert page.open == []
    names = [name for name, _ in page.found]
    assert set(names).isdisjoint({"img", "link", "iframe", "object", "embed", "form", "base", "image"})
    assert (names.count("script"), names.count("style")) == (1, 1)
    for name, attributes in page.found:
        assert not any(key.startswith("on") or key in ("src", "srcset", "action") for key in attributes), name
        assert all((attributes.get(key) or "#").startswith("#") for key in ("href", "xlink:href")), name
        assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", " ".join(v or "" for v in attributes.values()))
    policies = [attributes["content"] for name, attributes in page.found if "http-equiv" in attributes]
    assert policies == [
        f"default-src 'none'; style-src '{_hash(text, 'style')}'; script-src '{_hash(text, 'script')}'; "
        "base-uri 'none'; form-action 'none'"
    ]


def _hash(page: str, element: str) -> str:
    """How a policy names the content of the only element of this kind (W3C Content Security Policy Level 3, hash-source)."""
    content = page[page.index(f"<{element}>") + len(element) + 2 : page.index(f"</{element}>")]
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def test_no_address_and_no_script_stand_in_the_text_either():
    page = render_report(full())
    assert not re.search(r"https?:|src=|@import|url\((?!#)|\bimport\b|fetch|XMLHttpRequest|innerHTML|eval", page)
    assert page.count("<script") == 1


def test_hostile_text_stays_text():
    """A log line with markup is shown as it is; what would move or hide text is written out."""
    page = render_report(full(HOSTILE))
    assert page.count("<script") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\\x1b[31m" in page
    assert "\u202e" not in page


def test_the_same_explanation_gives_the_same_bytes():
    assert render_report(full()) == render_report(full())


def test_ids_are_unique_and_every_reference_is_inside_the_page():
    page = Elements(render_report(full()))
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = {a["href"] for _, a in page.found if "href" in a}
    references |= {f"#{name}" for _, a in page.found for name in (a.get("aria-labelledby") or "").split()}
    assert references <= {f"#{name}" for name in ids}


def test_an_empty_diagnosis_has_a_page():
    page = render_report(empty())
    assert "these files do not show a cause" in page
    assert "<svg" not in page


def test_a_page_says_what_was_found():
    page = render_report(full())
    for heading in (
        "Findings, most likely first", "Measured", "Between pairs", "Ranks side by side", "Looked at, not the cause",
        "Checked, and right", "Read", "Not read",
    ):  # fmt: skip
        assert f">{heading}</h2>" in page
    # One H100 node with 8 ranks: the plateau that the catalogue expects is drawn and named.
    assert "limited by NVLink" in page


def test_evidence_stands_in_its_context(tmp_path):
    """The second line of three; its neighbours come from the file, without secrets, and are not marked."""
    file = tmp_path / "log"
    file.write_text("first AWS_SECRET_ACCESS_KEY=abcdefghijk\nsecond\nthird\x1b[31m!\n")
    artefact = Artefact.of(file, "log")
    ref = LineRef("log", 2, file.read_bytes().index(b"second"), artefact.sha256)
    (found,) = excerpts((Evidence("log", 2, "second"),), (ref,), {artefact.sha256: file})
    assert [(line.number, line.text, line.is_evidence) for line in found.lines] == [
        (1, "first AWS_SECRET_ACCESS_KEY=***********", False),
        (2, "second", True),
        (3, "third!", False),
    ]


def test_neighbours_of_a_very_long_line_are_left_out(tmp_path):
    """What cannot be found in a few KiB is not looked for."""
    file = tmp_path / "log"
    file.write_text("x" * 100_000 + "\nevidence" + "y" * 100_000 + "\nafter\n")
    artefact = Artefact.of(file, "log")
    ref = LineRef("log", 2, 100_001, artefact.sha256)
    (found,) = excerpts((Evidence("log", 2, "evidence"),), (ref,), {artefact.sha256: file})
    assert [line.number for line in found.lines] == [2]


def test_a_file_that_is_gone_costs_only_the_context(tmp_path):
    found = excerpts((Evidence("log", 2, "second"),), (at(2, path="log"),), {"a": tmp_path / "gone"})
    assert [line.text for line in found[0].lines] == ["second"]


def test_lines_that_follow_one_another_are_one_excerpt(tmp_path):
    """Lines 2 and 4 share their neighbour 3; line 9 stands alone."""
    file = tmp_path / "log"
    file.write_text(
        "".join(f"{n}\n" for n in range(1, 10))
    )  # one digit and a line break: line n begins at byte 2 (n - 1)
    artefact = Artefact.of(file, "log")
    lines = [LineRef("log", n, 2 * (n - 1), artefact.sha256) for n in (2, 4, 9)]
    found = excerpts([Evidence("log", n.line, str(n.line)) for n in lines], lines, {artefact.sha256: file})
    assert [[line.number for line in excerpt.lines] for excerpt in found] == [[1, 2, 3, 4, 5], [8, 9]]


def test_visible_leaves_ordinary_text_alone():
    assert visible("size  (B)\u00b5s 100%") == "size  (B)\u00b5s 100%"


def test_writing_replaces_the_file_at_once_and_keeps_its_permissions(tmp_path: Path):
    target = tmp_path / "report.html"
    target.write_text("old")
    target.chmod(0o640)
    write_report(empty(), target)
    assert GENERATOR in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_is_no_report(tmp_path: Path):
    with pytest.raises(InputError, match="is a folder; name the file of the report"):
        write_report(empty(), tmp_path)


def test_a_device_is_never_replaced():
    with pytest.raises(InputError, match="/dev/null: is a device or a pipe"):
        write_report(empty(), Path("/dev/null"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"no/report.html: the report cannot be written: No such file or directory"):
        write_report(empty(), tmp_path / "no" / "report.html")


def test_the_generator_stands_where_it_is_looked_for():
    """`busbw explain` leaves out its own reports by the first 512 bytes of a file."""
    assert GENERATOR in render_report(full())[:512]


def test_a_byte_order_mark_before_a_neighbour_is_not_shown(tmp_path):
    """The first line of a file that Windows wrote; the mark is no character of the line."""
    file = tmp_path / "log"
    file.write_bytes("\ufefffirst\nsecond\n".encode())
    artefact = Artefact.of(file, "log")
    ref = LineRef("log", 2, file.read_bytes().index(b"second"), artefact.sha256)
    (found,) = excerpts((Evidence("log", 2, "second"),), (ref,), {artefact.sha256: file})
    assert [line.text for line in found.lines] == ["first", "second"]


def test_lines_of_an_earlier_finding_are_named_and_not_repeated():
    """Two rivals rest on line 3: the second one links to the first."""
    rival = dataclasses.replace(full().diagnosis.findings[0], kind="iommu-p2p", confidence=0.4)
    both = dataclasses.replace(full().diagnosis, findings=(full().diagnosis.findings[0], rival), cleared=(), checks=())
    page = render_report(Explanation(both, Facts()))
    assert page.count('<figure class="excerpt">') == 1
    assert 'Also shown above: <a href="#finding-1">job/nccl.log:3</a>' in page


def test_commands_that_tell_rivals_apart_stand_once():
    """Both findings name `a line`; it is shown for both, once."""
    first = dataclasses.replace(full().diagnosis.findings[0], distinguish=("lspci -tv", "nvidia-smi -q"))
    rival = dataclasses.replace(first, kind="iommu-p2p", distinguish=("lspci -tv",))
    both = dataclasses.replace(full().diagnosis, findings=(first, rival))
    page = render_report(Explanation(both, Facts()))
    assert page.count('<code class="command">lspci -tv</code>') == 1
    assert page.count('<code class="command">nvidia-smi -q</code>') == 1
    assert ">To decide between them</h2>" in page


def test_a_huge_job_has_a_page_of_a_few_megabytes():
    """Many matrices of many ends, long curves, thousands of ranks, messages and losses: each is cut, and what is cut is counted."""
    facts = Facts()
    long = "x" * 600
    for k in range(4000):
        process = facts.processes.setdefault((f"n{k // 8}", k), Process(f"n{k // 8}", k, {k}, {k % 8}))
        process.events.append(Event("nccl.version", at(2), "", fields={"version": f"2.{k}"}))
        event = Event("nccl.cuda_failure", at(k), long, "warning", k * 10**9, f"n{k // 8}", k)
        facts.events["nccl.cuda_failure"].append(event)
        facts.links.append(LinkGroup(f"n{k // 8}", k, k % 8, "send", f"NET/IB/{k % 8}", at(3), 4, k, 0))
    for table in range(8):
        for src in range(100):
            for dst in range(100):
                facts.pairs.append(
                    Pair(f"t{table}", "bandwidth", f"h{src}", f"h{dst}", 1e9 * (1 + (src * dst) % 7), "bytes/s", at(5))
                )
        points = [Point(8 + 8 * k, 1000 + k, 1e9, 1e9 + k, 0.0, False, at(k)) for k in range(5000)]
        facts.curves.append(Curve("t", "a", table, "all_reduce", 8, 1, points))
    loss = Loss("truncated-row", "log", 3, long)
    lines = [at(k) for k in range(24)]
    evidence = tuple(Evidence("log", k, long) for k in range(24))
    findings = tuple(
        Finding(kind, 0.5, "major", long, lines, long, (long,) * 5, "rule", evidence) for kind in sorted(kinds())
    )
    diagnosis = Diagnosis("faulty", findings, (), (), (loss,) * 5000, (("log", 1, ()),) * 5000)
    page = render_report(Explanation(diagnosis, facts))
    assert len(page) < 5_000_000
    assert "not shown" in page


class Words(HTMLParser):
    """The page as it is read, a line an element; drawings left out, which follow matplotlib's version."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.hidden = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("svg", "style", "script", "title")
        if tag in ("h1", "h2", "h3", "h4", "p", "li", "tr", "figure", "figcaption", "summary", "pre", "footer"):
            self.lines.append("")
        if tag in ("td", "th", "i"):
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("svg", "style", "script", "title")

    def handle_data(self, data: str) -> None:
        if not self.hidden and data.strip():
            if not self.lines:
                self.lines.append("")
            self.lines[-1] += data.replace("\n", " ")


def test_the_page_reads_as_it_always_did(golden):
    """All words of a page in which every part has something."""
    lines = [line.strip() for line in Words(render_report(full())).lines]
    golden("page.txt", "\n".join(line for line in lines if line) + "\n")
