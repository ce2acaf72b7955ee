"""From paths to rows: packed or not, what was written down is the same."""

from __future__ import annotations

import gzip
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from busbw.diagnosis import explain, to_json
from busbw.errors import InputError
from busbw.observations import Rows
from busbw.observations.store import Store
from busbw.readers import Reading, find_artefacts, read_artefact, registry
from busbw.readers.base import Lines

CASES = Path(__file__).parents[1] / "diagnosis" / "cases"
DATA = Path(__file__).parent / "data"
TEXTS = sorted(DATA.glob("*.txt"))
CODECS: list[Callable[[bytes], bytes]] = [gzip.compress, zstandard.compress]


def rows_of(file: Path, spool: Path) -> list[tuple[str, list[dict[str, object]]]]:
    """Rows with line, byte offset and content hash, a file at a time."""
    artefacts, losses = find_artefacts([str(file)], spool)
    assert losses == []
    items = [item for artefact in artefacts for item in read_artefact(artefact, Reading(artefact))]
    return [(item.table, item.batch.to_pylist()) for item in items if isinstance(item, Rows)]


def tar_of(folder: Path, file: Path, mode: str) -> Path:
    with tarfile.open(file, mode) as archive:
        archive.add(folder, ".")
    return file


@given(text=st.sampled_from(TEXTS), codec=st.sampled_from(CODECS))
def test_a_compressed_text_gives_the_rows_of_the_text(
    tmp_path_factory: pytest.TempPathFactory, text: Path, codec: Callable[[bytes], bytes]
):
    """The same lines, the same byte offsets, the same content hash."""
    folder = tmp_path_factory.mktemp("packed")
    packed = folder / "log"
    packed.write_bytes(codec(text.read_bytes()))
    assert rows_of(packed, folder) == rows_of(text, folder)


@pytest.mark.parametrize(
    "case", ["gdr-peermem-one-node", "affinity-slurm-mask", "healthy-a100-after-fix", "topo", "wrong-nccl-two-wheels"]
)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_bundle_gives_the_findings_of_the_folder(case: str, mode: str, tmp_path: Path):
    """The same kinds, with the same evidence but for the path that is shown."""
    folder = next(CASES.glob(f"{case}*"), None) or next(CASES.glob(f"*{case}*"))
    bundle = tar_of(folder, tmp_path / "bundle", mode)

    def told(path: Path) -> tuple[object, list[object]]:
        result = to_json(explain(*find_artefacts([str(path)], tmp_path / "spool")).diagnosis)
        evidence = [
            (
                f["kind"],
                f["confidence"],
                sorted((Path(e["path"].split("!")[-1]).name, e["line"], e["text"]) for e in f["evidence"]),
            )
            for f in result["findings"]
        ]
        return result["verdict"], evidence

    assert told(bundle) == told(folder)


def test_members_are_shown_within_their_archive(tmp_path: Path):
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "nccl.log").write_text("a line\n")
    bundle = tar_of(tmp_path, tmp_path.parent / "bundle.tar.gz", "w:gz")
    artefacts, losses = find_artefacts([str(bundle)], tmp_path / "spool")
    assert [artefact.path for artefact in artefacts] == [f"{bundle}!node0/nccl.log"]
    assert losses == []


def test_progress_is_the_bytes_of_the_files_as_they_lie(tmp_path: Path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(range(32, 127)) * 9999))
    (tmp_path / "b.log").write_bytes(b"text\n" * 1000)
    counted: list[int] = []
    find_artefacts([str(tmp_path)], tmp_path / "spool", progress=counted.append)
    assert sum(counted) == sum(file.stat().st_size for file in tmp_path.iterdir() if file.is_file())


def test_the_store_keeps_the_text_of_a_compressed_file_without_its_secrets(tmp_path: Path):
    text = b"NCCL_DEBUG=INFO\nHF_TOKEN=hf_abcdefghijkl\n"
    (tmp_path / "env.gz").write_bytes(gzip.compress(text))
    [artefact], _ = find_artefacts([str(tmp_path / "env.gz")], tmp_path / "spool")
    store = Store(tmp_path / "store")
    with store.begin([artefact]) as writer:
        writer.keep(artefact, ["settings"])
        writer.commit()
    kept = store.kept(artefact.sha256)
    assert kept.read_bytes() == text.replace(b"hf_abcdefghijkl", b"*" * 15)


def test_standard_input_may_be_an_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a.log").write_text("a line\n")
    data = tar_of(tmp_path / "job", tmp_path / "bundle", "w:gz").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    artefacts, _ = find_artefacts(["-"], tmp_path / "spool")
    assert [(a.path, a.file.read_text()) for a in artefacts] == [("<stdin>!a.log", "a line\n")]


def test_what_was_unpacked_is_for_its_owner_alone(tmp_path: Path):
    """Before secrets are blanked a member may hold any."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"text\n"))
    [artefact], _ = find_artefacts([str(tmp_path / "a.gz")], tmp_path / "spool")
    assert artefact.file.stat().st_mode & 0o077 == 0
    assert artefact.file.parent.stat().st_mode & 0o077 == 0


def test_the_command_leaves_nothing_behind(tmp_path: Path):
    """Neither the command nor a program that names no folder."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"NCCL WARN a line\n"))
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    code = f"from busbw.readers import find_artefacts; [a], _ = find_artefacts([{str(tmp_path / 'a.gz')!r}]); print(a.file.read_text())"
    for command in (["-m", "busbw", "read", str(tmp_path / "a.gz")], ["-c", code]):
        done = subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True, text=True)
        assert done.stdout
        assert list((tmp_path / "tmp").iterdir()) == []


def test_a_report_never_overwrites_the_archive_that_is_read(tmp_path: Path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a.log").write_text("NCCL WARN a line\n")
    bundle = tar_of(tmp_path / "job", tmp_path / "bundle.tgz", "w:gz")
    before = bundle.read_bytes()
    command = [sys.executable, "-m", "busbw", "explain", str(bundle), "--report", str(bundle)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is one of the files to be read" in done.stderr
    assert bundle.read_bytes() == before


def lost(*paths: Path) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Names of the files found, and losses as (kind, name, detail)."""
    artefacts, losses = find_artefacts([str(path) for path in paths])
    return [Path(a.path).name for a in artefacts], [(x.kind, Path(x.path).name, x.detail) for x in losses]


def test_links_that_lead_nowhere_are_losses_and_the_rest_is_read(tmp_path: Path):
    """A loop, also one in the middle of a path, and a link to what is not there; each with its own words."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "dangling").symlink_to("../gone.log")
    (tmp_path / "good.log").write_text("a line\n")
    (tmp_path / "link.log").symlink_to("good.log")
    found, losses = lost(tmp_path, tmp_path / "a", tmp_path / "a" / "nccl.log")
    assert found == ["good.log"]
    assert [(kind, name) for kind, name, _ in losses] == [
        ("unreadable", name) for name in ("a", "b", "dangling", "a", "nccl.log")
    ]
    assert all("leads back to itself" in losses[i][2] for i in (0, 1, 3, 4))
    assert "a symbolic link to ../gone.log, which is not there" in losses[2][2]
    assert "permissions" not in str(losses)


@pytest.mark.parametrize("mark", ["begun", "kept"])
def test_a_store_is_known_by_its_layout(tmp_path: Path, mark: str):
    """Also one whose hidden folders were not copied. A job's own manifest.json makes none."""
    (tmp_path / "job" / "artefacts").mkdir(parents=True)
    (tmp_path / "job" / "manifest.json").write_text("{}\n")
    store = tmp_path / "store"
    for folder in [".writers", "artefacts"] if mark == "begun" else ["0123456789abcdef" * 2]:
        (store / folder).mkdir(parents=True)
        (store / folder / "manifest.json").write_text("{}\n")
    found, losses = lost(tmp_path)
    assert found == ["manifest.json"]
    assert [(kind, name) for kind, name, _ in losses] == [("store-skipped", "store")]


def test_a_pipe_is_told_to_be_piped(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/null")):
        _, [(kind, _, detail)] = lost(path)
        assert kind == "not-a-file"
        assert "pipe it and use -" in detail


@pytest.mark.parametrize(("codec", "kind"), [("utf-16-le", "not-utf-8"), ("utf-16-be", "not-utf-8"), ("utf-32-le", "binary")])  # fmt: skip
def test_utf_16_is_named_without_a_byte_order_mark(tmp_path: Path, codec: str, kind: str):
    (tmp_path / "log").write_bytes("NCCL WARN größer\r\n".encode(codec) * 10)
    [artefact], _ = find_artefacts([str(tmp_path / "log")])
    reading = Reading(artefact)
    list(read_artefact(artefact, reading))
    [loss] = reading.losses
    assert loss.kind == kind
    if kind == "not-utf-8":
        assert f"iconv -f {codec.replace('-le', 'LE').replace('-be', 'BE').upper()} -t UTF-8" in loss.detail


def test_a_byte_order_mark_is_no_part_of_the_evidence(tmp_path: Path):
    text = "host0:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with status=12 opcode=0 len=0 vendor err 129\n"
    (tmp_path / "plain.log").write_text(text)
    (tmp_path / "marked.log").write_text(text, encoding="utf-8-sig")
    told = [to_json(explain(*find_artefacts([str(file)])).diagnosis)["findings"] for file in sorted(tmp_path.iterdir())]
    texts = [[e["text"] for f in findings for e in f["evidence"]] for findings in told]
    assert texts[0] == texts[1]
    assert text.strip() in texts[0]


def test_progress_moves_within_a_file(tmp_path: Path):
    (tmp_path / "big.log").write_bytes(b"a line\n" * 300_000)
    counted: list[int] = []
    [artefact], _ = find_artefacts([str(tmp_path)], progress=counted.append)
    assert len(counted) > 1
    assert sum(counted) == artefact.size_bytes
    [same], _ = find_artefacts([str(tmp_path)])
    assert same == artefact


def test_a_signature_that_tells_digits_apart_is_refused(monkeypatch: pytest.MonkeyPatch):
    """It would never see them: lines come with every digit 0."""

    class Entry:
        name, value = "theirs", "theirs:READER"

        @staticmethod
        def load():
            class Theirs(Lines):
                name = "theirs"
                signature = re.compile(r"mlx5_\d{1,2}: [0-9]+ v\d")

            return Theirs()

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry])
    registry.all_readers.cache_clear()
    with pytest.raises(InputError, match=r"theirs of theirs:READER .* write"):
        registry.all_readers()
    registry.all_readers.cache_clear()
