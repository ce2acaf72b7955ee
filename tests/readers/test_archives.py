"""What comes out of compressed files and archives, whoever packed them and whatever happened to them on the way."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import stat
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from busbw.errors import Loss
from busbw.observations import Artefact
from busbw.readers import find_artefacts
from busbw.readers.archives import Limits

CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
LINE = b"gpu0:22612:22693 [0] NCCL INFO Channel 00 : 0[7000] -> 8[7000] [send] via NET/IB/1/GDRDMA\n"
TEXTS = st.binary(max_size=5000) | st.binary(min_size=1, max_size=20).map(lambda data: data * 70_000)


def tar(members: Iterable[tuple[str, bytes]], dialect: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=dialect) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zipped(members: Iterable[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "") -> bytes:
    """One member without the end mark."""
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, len(data), link
    return member.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


class Unpacked:
    """What is found in a file of these bytes: contents by name, and losses."""

    def __init__(self, data: bytes, limits: Limits | None = None, name: str = "f") -> None:
        with tempfile.TemporaryDirectory() as folder:
            file, spool = Path(folder) / name, Path(folder) / "spool"
            file.write_bytes(data)
            artefacts, losses = find_artefacts([str(file)], spool, limits=limits)
            self.artefacts = artefacts
            self.contents = {a.path.removeprefix(str(file)): a.file.read_bytes() for a in artefacts}
            assert [a for a in artefacts if Artefact.of(a.file, a.path) != a] == []
            assert all(a.file == file or a.file.is_relative_to(spool) for a in artefacts)
            self.on_disk = sum(f.stat().st_size for f in spool.rglob("*") if f.is_file())
            self.losses = [Loss(x.kind, x.path.removeprefix(str(file)), x.line, x.detail, x.count) for x in losses]

    @property
    def lost(self) -> list[tuple[str, str, int]]:
        return [(loss.kind, loss.path, loss.count) for loss in self.losses]


def readable(data: bytes) -> bytes:
    """Random bytes as text that is not refused."""
    return bytes(32 + byte % 95 for byte in data)


@given(text=TEXTS.map(readable), codec=st.sampled_from(sorted(CODECS)), parts=st.integers(1, 3))
def test_a_compressed_text_is_the_text(text: bytes, codec: str, parts: int):
    """Also one that was written in parts, each a stream of its own, as pigz, pzstd and log rotation do. An empty one is empty."""
    cut = -(-len(text) // parts) or 1
    packed = b"".join(CODECS[codec](text[i : i + cut]) for i in range(0, max(1, len(text)), cut))
    unpacked = Unpacked(packed)
    assert (unpacked.contents, unpacked.losses) == ({"": text}, [])


@given(
    members=st.dictionaries(st.text("abc/_.é", min_size=1, max_size=150), TEXTS.map(readable), min_size=1, max_size=4),
    dialect=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    codec=st.sampled_from(["", *sorted(CODECS)]),
)
def test_an_archive_holds_its_members(members: dict[str, bytes], dialect: int, codec: str):
    """Names longer than a header takes, empty members, any compression around it."""
    members = {f"n{i}/{name}x".replace("..", "."): text for i, (name, text) in enumerate(members.items())}
    data = tar(members.items(), dialect)
    unpacked = Unpacked(CODECS[codec](data) if codec else data)
    shown = {"!" + "/".join(p for p in name.split("/") if p not in ("", ".")): text for name, text in members.items()}
    assert (unpacked.contents, unpacked.losses) == (shown, [])
    assert Unpacked(zipped(members.items())).contents == shown


def test_a_file_is_told_by_its_content_not_its_name():
    assert Unpacked(LINE, name="log.tar.gz").contents == {"": LINE}
    assert Unpacked(gzip.compress(LINE), name="log.txt").contents == {"": LINE}
    assert Unpacked(tar([("a", LINE)]), name="log.gz").contents == {"!a": LINE}


def test_members_that_are_archives_are_opened():
    inner = gzip.compress(tar([("nccl.log", LINE)]))
    everything = tar([("node0.tgz", inner), ("dmesg.gz", gzip.compress(b"text")), ("z", zipped([("topo", b"x")]))])
    assert Unpacked(zstandard.compress(everything)).contents == {
        "!node0.tgz!nccl.log": LINE,
        "!dmesg.gz": b"text",
        "!z!topo": b"x",
    }


def test_archives_are_opened_to_depth_3():
    """Three archives, one in the other, are read; what is in a fourth is a loss, and so is a fourth compression."""
    data = LINE
    for _ in range(3):
        data = tar([("a", data)])
    assert Unpacked(data).contents == {"!a!a!a": LINE}
    assert Unpacked(tar([("a", data), ("b", LINE)])).contents == {"!b": LINE}
    assert Unpacked(tar([("a", data)])).lost == [("too-deep", "!a!a!a", 1)]
    packed = gzip.compress(gzip.compress(gzip.compress(LINE)))
    assert Unpacked(packed).contents == {"": LINE}
    assert Unpacked(gzip.compress(packed)).lost == [("too-deep", "", 1)]


def test_tars_written_one_after_the_other_are_all_read():
    """`cat a.tar b.tar`: the end mark of the first is not the end of the file."""
    assert Unpacked(tar([("a", b"1")]) + tar([("b", b"2")])).contents == {"!a": b"1", "!b": b"2"}


def test_a_tar_from_before_posix_is_read():
    """No magic word: the checksum of its first header tells it."""
    header = bytearray(entry("a", data=LINE))
    header[257:265] = bytes(8)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    assert Unpacked(bytes(header) + bytes(1024)).contents == {"!a": LINE}


@pytest.mark.parametrize(
    "name", ["/etc/cron.d/x", "../../x", "a/../../x", "..", "\\\\server\\x", "C:\\x", "a\\..\\x", "x" * 5000]
)
@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_name_never_leads_anywhere(name: str, pack: Callable[[Iterable[tuple[str, bytes]]], bytes], tmp_path: Path):
    unpacked = Unpacked(pack([(name, LINE), ("ok", LINE), ("/" + name, LINE)]))
    assert unpacked.contents == {"!ok": LINE}
    assert [(loss.kind, loss.count) for loss in unpacked.losses] == [("unsafe-name", 2)]


def test_a_name_that_steers_a_terminal_is_shown_without_it():
    assert list(Unpacked(tar([("a\x1b[31m\nb", LINE)])).contents) == ["!a\ufffd[31m\ufffdb"]


def test_links_and_devices_are_counted_and_not_followed(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    members = b"".join(entry(f"l{i}", kind, link=str(secret)) for i, kind in enumerate(kinds))
    unpacked = Unpacked(members + entry("d/", tarfile.DIRTYPE) + entry("l0/x", data=LINE) + bytes(1024))
    assert unpacked.contents == {"!l0/x": LINE}
    assert unpacked.lost == [("not-a-file", "!l0", 5)]

    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(link, str(secret))
    assert Unpacked(out.getvalue()).lost == [("not-a-file", "!link", 1)]


def test_of_two_members_with_one_name_the_last_counts():
    """As with tar -x: an archive that was appended to holds older versions too."""
    unpacked = Unpacked(tar([("a", b"old"), ("b", LINE), ("./a", b"new")]))
    assert unpacked.contents == {"!a": b"new", "!b": LINE}
    assert unpacked.lost == [("replaced-member", "!a", 1)]
    assert unpacked.on_disk == len(b"new") + len(LINE)


def test_a_member_that_nobody_reads_is_named_and_takes_no_room():
    unpacked = Unpacked(tar([("core", b"\x7fELF" + bytes(100_000)), ("a", LINE), ("u", "é\n".encode("utf-16"))]))
    assert unpacked.contents == {"!a": LINE}
    assert unpacked.lost == [("binary", "!core", 1), ("not-utf-8", "!u", 1)]
    assert unpacked.on_disk == len(LINE)


def test_an_archive_without_files_says_so():
    assert Unpacked(entry("d/", tarfile.DIRTYPE) + bytes(1024)).lost == [("empty", "", 1)]
    assert Unpacked(zipped([])).lost == [("empty", "", 1)]


def test_an_empty_member_is_an_empty_file():
    unpacked = Unpacked(tar([("empty", b""), ("a", LINE)]))
    assert (unpacked.contents, unpacked.losses) == ({"!empty": b"", "!a": LINE}, [])


SMALL = Limits(members=5, expanded_bytes=1_000_000, ratio=200, ratio_from_bytes=100_000)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_bomb_is_a_loss_and_the_rest_is_read(codec: str):
    """Zeros would be refused as binary at once; blanks go on until the ratio is found out."""
    bomb = CODECS[codec](b" " * 900_000)
    assert Unpacked(bomb, SMALL).lost == [("too-large", "", 1)]
    unpacked = Unpacked(tar([("bomb", bomb), ("a", LINE)]), SMALL)
    assert unpacked.contents == {"!a": LINE}
    assert unpacked.lost == [("too-large", "!bomb", 1)]
    assert "200 times" in unpacked.losses[0].detail
    assert unpacked.on_disk == len(LINE)


def test_a_bomb_in_a_zip_is_a_loss_and_the_rest_is_read():
    unpacked = Unpacked(zipped([("bomb", b" " * 900_000), ("a", LINE)]), SMALL)
    assert (unpacked.contents, unpacked.lost) == ({"!a": LINE}, [("too-large", "!bomb", 1)])


def test_what_was_read_before_a_tar_turns_out_a_bomb_is_kept():
    limits = Limits(ratio_from_bytes=2**21)
    unpacked = Unpacked(gzip.compress(tar([("a", LINE), ("bomb", b" " * 2**22), ("b", LINE)])), limits)
    assert (unpacked.contents, unpacked.lost) == ({"!a": LINE}, [("too-large", "", 1)])


def test_all_files_together_have_a_limit():
    """A member that does not fit is left out; a smaller one after it is read."""
    noise = readable(random.Random(0).randbytes(600_000))
    for data in (tar([("a", noise), ("b", noise), ("c", LINE)]), zipped([("a", noise), ("b", noise), ("c", LINE)])):
        unpacked = Unpacked(data, SMALL)
        assert list(unpacked.contents) == ["!a", "!c"]
        assert unpacked.lost == [("too-large", "!b", 1)]
    unpacked = Unpacked(gzip.compress(tar([("a", noise), ("b", noise), ("c", LINE)])), SMALL)
    assert list(unpacked.contents) == ["!a"]
    assert ("too-large", "", 1) in unpacked.lost
    assert "GiB in all" in unpacked.losses[0].detail


def test_an_archive_of_too_many_members_is_read_up_to_the_limit():
    many = [(f"{i}", LINE) for i in range(9)]
    for data in (tar(many), zipped(many), gzip.compress(tar(many))):
        unpacked = Unpacked(data, SMALL)
        assert list(unpacked.contents) == [f"!{i}" for i in range(5)]
        assert unpacked.lost == [("too-large", "", 1)]


def test_a_name_as_long_as_a_file_is_not_held_in_memory():
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**22
    data = header.tobuf(tarfile.GNU_FORMAT) + b"x" * 2**22 + entry("a", data=LINE) + bytes(1024)
    assert Unpacked(data).contents == {"!a": LINE}
    assert Unpacked(data).lost == [("too-large", "", 1)]


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("tenth", range(1, 10))
def test_a_cut_file_gives_what_comes_before(codec: str, tenth: int):
    """A text or an archive: a prefix of the contents, and one loss that says what to do."""
    text = readable(random.Random(tenth).randbytes(400_000))
    packed = CODECS[codec](text)
    unpacked = Unpacked(packed[: len(packed) * tenth // 10])
    assert unpacked.lost == [("truncated", "", 1)]
    assert "copy the file again" in unpacked.losses[0].detail
    got = unpacked.contents.get("", b"")
    assert text.startswith(got)
    if codec != "bz2":  # blocks of 900 kB
        assert len(got) > len(text) * (tenth - 4) / 10

    members = [(f"{i}", readable(random.Random(i).randbytes(40_000))) for i in range(10)]
    packed = CODECS[codec](tar(members))
    cut = Unpacked(packed[: len(packed) * tenth // 10])
    assert cut.lost == [("truncated", "", 1)]
    assert list(cut.contents) == [f"!{i}" for i in range(len(cut.contents))]
    assert all(dict(members)[name[1:]].startswith(data) for name, data in cut.contents.items())


@pytest.mark.parametrize("tenth", range(1, 10))
def test_a_cut_tar_gives_what_comes_before(tenth: int):
    members = [(f"{i}", readable(random.Random(i).randbytes(40_000))) for i in range(10)]
    data = b"".join(entry(name, data=text) for name, text in members)
    whole = len(entry("0", data=members[0][1]))
    cut = Unpacked(data[: whole * tenth + 1000])
    assert cut.lost == [("truncated", "", 1)]
    expected = {f"!{name}": text for name, text in members[:tenth]}
    assert cut.contents == expected | {f"!{tenth}": members[tenth][1][:488]}
    assert Unpacked(data[: whole * tenth]).contents == expected


def test_a_cut_zip_says_what_to_do():
    """Its table of contents stands at the end."""
    data = zipped([("a", LINE), ("b", LINE)])
    unpacked = Unpacked(data[:-30])
    assert unpacked.lost == [("damaged", "", 1)]
    assert "zip -FF" in unpacked.losses[0].detail


def test_the_outermost_file_that_was_cut_is_named():
    """The archive in it was whole when it was packed."""
    inner = gzip.compress(tar([("a", readable(random.Random(0).randbytes(100_000)))]))
    data = tar([("inner.tgz", inner)])
    unpacked = Unpacked(data[:50_000])
    assert unpacked.lost == [("truncated", "", 1)]
    assert list(unpacked.contents) == ["!inner.tgz!a"]
    damaged = tar([("inner.tgz", inner[:50_000]), ("b", LINE)])
    assert Unpacked(damaged).lost == [("truncated", "!inner.tgz", 1)]


def test_a_wrong_checksum_costs_one_byte_at_most():
    """zlib says so while it gives the last byte."""
    packed = bytearray(gzip.compress(LINE * 1000))
    packed[-8] ^= 1
    unpacked = Unpacked(bytes(packed))
    assert (unpacked.contents[""] + b"\n", unpacked.lost) == (LINE * 1000, [("damaged", "", 1)])


def test_a_damaged_header_costs_its_member_alone():
    """The header and 1 block of data that follows it are counted; the next header is found by its checksum."""
    first, second, third = entry("a", data=b"1"), bytearray(entry("b", data=b"2")), entry("c", data=b"3")
    second[0] ^= 1
    unpacked = Unpacked(first + bytes(second) + third + bytes(1024))
    assert (unpacked.contents, unpacked.lost) == ({"!a": b"1", "!c": b"3"}, [("damaged", "", 2)])


def test_what_follows_a_compressed_stream_is_a_loss_unless_it_is_zeros():
    assert Unpacked(gzip.compress(LINE) + bytes(5000)).losses == []
    trailing = Unpacked(gzip.compress(LINE) + b"signature")
    assert (trailing.contents, trailing.lost) == ({"": LINE}, [("damaged", "", 1)])


@pytest.mark.parametrize("seed", range(4))
def test_damage_is_data(seed: int):
    """Any byte of any packed file may be any other: no exception, nothing outside the folder, nothing over the limits."""
    rng = random.Random(seed)
    members = [(f"node{i}/{'n' * 120 * i}", LINE * rng.randint(0, 50)) for i in range(4)]
    members.append(("inner.tgz", gzip.compress(tar([("x", LINE)]))))
    packed = [tar(members), tar(members, tarfile.GNU_FORMAT), zipped(members)]
    packed += [compress(packed[0]) for compress in CODECS.values()]
    for data in packed:
        for _ in range(40):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 6)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            unpacked = Unpacked(bytes(damaged), SMALL)
            assert unpacked.on_disk <= 1_000_000
            assert all(loss.detail for loss in unpacked.losses)


def test_a_file_met_in_several_losses_is_counted_by_kind():
    data = tar([("/a", LINE), ("../b", LINE), ("c", LINE)])
    assert Counter(loss.kind for loss in Unpacked(data).losses) == {"unsafe-name": 1}
