"""Compressed files and archives: what they hold, streamed into a folder. Told by content, bounded in every direction.

Names of members are shown, never used as paths; links and devices are not followed. Damage ends a file, and what came before is kept.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, BinaryIO, Protocol, cast

import zstandard

from busbw.errors import Loss
from busbw.observations import Artefact

__all__ = ["HEAD_BYTES", "Limits", "Unpacker", "is_packed"]

HEAD_BYTES = 64 * 1024
"""What formats are told by."""

_PIECE_BYTES = 2**20
_FEED_BYTES = 256 * 2**10
_ZSTD_FEED_BYTES = 1024
"""zstd gives all that its input holds at once: up to 128 KiB for each 4 bytes, so 32 MiB. Source: RFC 8878, RLE_Block."""
_WINDOW_BYTES = 128 * 2**20
"""Memory that a zstd or xz stream may ask for; what the tools themselves take without --long=31 or the like (zstd(1))."""
_BLOCK_BYTES = 512
_STREAMS = 1_000_000
"""Compressed streams, one after the other, in one file; bgzip makes one of every 64 KiB."""
_META_BYTES = 2**20
"""Long names and pax records of one member; Linux allows names of 4 KiB."""
_ZIP_TABLE_BYTES = 8 * 2**20
"""Table of contents of a zip file, which is held in memory."""
_NAME_LENGTH = 4096

_FETCH_AGAIN = "What comes before is read; copy the file again and compare its checksum with the original"
_UNPACK_IT = "If you trust it, unpack it and name the folder"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of what somebody else packed is unpacked. Members and bytes count over all files of one call."""

    members: int = 20_000
    expanded_bytes: int = 8 * 2**30
    ratio: int = 200
    """Expanded to compressed bytes of one file, once more than `ratio_from_bytes` came out of it."""
    ratio_from_bytes: int = 64 * 2**20
    depth: int = 3
    """Archives in archives; as many compressions, one around the other, in each."""


def is_packed(head: bytes) -> bool:
    """Whether a file that begins like this is compressed or an archive."""
    return _codec_of(head) is not None or _is_tar(head) or _is_zip(head)


class Unpacker:
    """Puts what files hold into a folder. Losses are in `losses`; those that many members share are counted as one."""

    def __init__(
        self,
        folder: Callable[[], Path],
        limits: Limits,
        refusal: Callable[[bytes], tuple[str, str] | None],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`folder` is called once there is something to write; `refusal` says of a head why nobody reads such a file.

        `progress` gets the bytes of the files themselves as they are read.
        """
        self._progress = progress
        self._folder, self._limits, self._refusal = folder, limits, refusal
        self._losses: dict[object, Loss] = {}
        self._files = self._entries = self._written_bytes = self._decoded_bytes = self._names = 0

    @property
    def losses(self) -> list[Loss]:
        """What was left out, in order."""
        return list(self._losses.values())

    def file(self, file: Path, shown_as: str) -> list[Artefact]:
        """What a file holds. Raises OSError if it cannot be opened."""
        with file.open("rb") as opened:
            return self.stream(opened, shown_as, file)

    def stream(self, opened: BinaryIO, shown_as: str, file: Path | None = None) -> list[Artefact]:
        """What comes out of an open file that need not be seekable; `file`: where it lies, if it does."""
        stream = _Stream(_read(opened, self._progress))
        found = self._any(stream, _Place(shown_as, shown_as), file)
        if stream.failure is not None:
            self._lose(stream.failure.kind, shown_as, stream.failure.detail)
        return found

    def _any(self, stream: _Stream, place: _Place, file: Path | None = None) -> list[Artefact]:
        head = stream.peek(HEAD_BYTES)
        codec = _codec_of(head)
        if codec is not None:
            return self._compressed(stream, place, codec)
        archive = self._tar if _is_tar(head) else self._zip if _is_zip(head) else None
        if archive is None:
            return self._text(stream, head, place)
        if place.archives == self._limits.depth:
            self._lose_depth(stream, place)
            return []
        if archive == self._tar:
            return self._tar(stream, place)
        return self._zip(stream, place, file)

    def _compressed(self, stream: _Stream, place: _Place, codec: str) -> list[Artefact]:
        if place.codecs == self._limits.depth:
            self._lose_depth(stream, place)
            return []
        inner = _Stream(self._within_limits(_expanded(stream, codec), stream))
        found = self._any(inner, replace(place, codecs=place.codecs + 1))
        inner.skip()  # a checksum stands at the end
        if inner.failure is not None and stream.failure is None:
            self._lose(inner.failure.kind, place.shown_as, inner.failure.detail)
        return found

    def _within_limits(self, pieces: Iterator[bytes], source: _Stream) -> Iterator[bytes]:
        limits, begin, out = self._limits, source.position, 0
        for piece in pieces:
            out += len(piece)
            self._decoded_bytes += len(piece)
            if out > limits.ratio_from_bytes and out > limits.ratio * (source.position - begin):
                raise _Failure(
                    "too-large", f"expands to more than {limits.ratio} times its size, as no log does. {_UNPACK_IT}"
                )
            if self._decoded_bytes > limits.expanded_bytes:
                raise _Failure("too-large", f"{self._all_bytes()}; what follows is left out")
            yield piece

    def _text(self, stream: _Stream, head: bytes, place: _Place) -> list[Artefact]:
        """The stream as one file of the folder, unless nobody can read it."""
        packed = place.archives > 0 or place.codecs > 0
        refused = self._refusal(head) if packed else None
        if not head and stream.failure is not None:
            return []
        if refused is not None:
            self._lose(refused[0], place.shown_as, refused[1])
            stream.abandon()
            return []
        artefact = self._spooled(stream, place, packed)
        if artefact is None:
            return []
        if stream.failure is not None and (stream.failure.kind == "too-large" or not artefact.size_bytes):
            artefact.file.unlink(missing_ok=True)
            return []
        return [artefact]

    def _spooled(self, stream: _Stream, place: _Place, packed: bool) -> Artefact | None:
        """The stream as it is, in the folder; None if there is no room for it."""
        file = None
        try:
            file = self._new_file()
            pieces = self._counted(stream.pieces()) if packed else stream.pieces()
            return Artefact.written(pieces, file, place.shown_as)
        except _Failure as failure:
            kind, detail = failure.kind, failure.detail
        except OSError as error:
            kind = "not-unpacked"
            detail = f"no room in the temporary folder: {error.strerror}. Set TMPDIR to a folder with more space"
        self._lose(kind, place.shown_as, detail, shared_by=place.archive)
        stream.abandon()
        if file is not None:
            file.unlink(missing_ok=True)
        return None

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._written_bytes += len(piece)
            if self._written_bytes > self._limits.expanded_bytes:
                raise _Failure("too-large", self._all_bytes())
            yield piece

    def _tar(self, stream: _Stream, place: _Place) -> list[Artefact]:
        members = _Members(self, place)
        reading = _TarHeaders(stream)
        for header in reading:
            begin = stream.position
            member = _Stream(stream.pieces(header.size_bytes))
            if not members.take(header, member):
                stream.abandon()
                break
            stream.skip(begin + -(-header.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES - stream.position)
            if stream.position < begin + header.size_bytes:
                reading.cut = True
        if reading.oversized:
            self._lose("too-large", place.shown_as, f"names of members over {_META_BYTES >> 20} MiB", reading.oversized)
        if stream.failure is None and not stream.abandoned:
            if reading.damaged_blocks:
                self._lose(
                    "damaged",
                    place.shown_as,
                    "blocks of 512 bytes that are no header of a member; what follows the next header is read. "
                    "Copy the archive again and compare its checksum with the original",
                    reading.damaged_blocks,
                )
            if reading.cut:
                self._lose("truncated", place.shown_as, f"the archive ends before its end mark. {_FETCH_AGAIN}")
            if not reading.damaged_blocks and not reading.cut:
                self._lose_if_empty(members, place)
        return members.found()

    def _zip(self, stream: _Stream, place: _Place, file: Path | None) -> list[Artefact]:
        spooled = None
        if file is None:  # its table of contents stands at the end
            spooled = self._spooled(stream, place, packed=True)
            if spooled is None:
                return []
            file = spooled.file
        stream.abandon()
        members = _Members(self, place)
        try:
            with _open_zip(file) as archive:
                for info in archive.infolist():
                    if not members.take(_zip_header(info), _Stream(self._zip_member(archive, info))):
                        break
        except _Failure as failure:
            self._lose(failure.kind, place.shown_as, failure.detail)
        except _ZIP_ERRORS as error:
            if stream.failure is None:
                self._lose(
                    "damaged",
                    place.shown_as,
                    f"its table of contents cannot be read: {error}. Copy it again, or repair it with zip -FF",
                )
        else:
            self._lose_if_empty(members, place)
        if spooled is not None:
            spooled.file.unlink(missing_ok=True)
        return members.found()

    def _zip_member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
        limits, out = self._limits, 0
        try:
            with archive.open(info) as member:
                while piece := member.read(HEAD_BYTES):
                    out += len(piece)
                    if out > limits.ratio_from_bytes and out > limits.ratio * info.compress_size:
                        raise _Failure(
                            "too-large",
                            f"expands to more than {limits.ratio} times its size, as no log does. {_UNPACK_IT}",
                        )
                    yield piece
        except _ZIP_ERRORS as error:
            raise _Failure("damaged", f"{error}. {_FETCH_AGAIN}") from error

    def _new_file(self) -> Path:
        self._names += 1
        return self._folder() / f"{self._names}"

    def _all_bytes(self) -> str:
        return f"over {self._limits.expanded_bytes / 2**30:g} GiB in all files together. {_UNPACK_IT}"

    def _lose_if_empty(self, members: _Members, place: _Place) -> None:
        if not members.files:
            self._lose("empty", place.shown_as, "the archive holds no file")

    def _lose_depth(self, stream: _Stream, place: _Place) -> None:
        stream.abandon()
        detail = f"archives in archives are read to depth {self._limits.depth}. {_UNPACK_IT}"
        self._lose("too-deep", place.shown_as, detail, shared_by=place.archive)

    def _lose(self, kind: str, path: str, detail: str, count: int = 1, shared_by: str | None = None) -> None:
        """Counts a loss; those with the same `shared_by` become one, with the place of the first."""
        key = (kind, detail, path if shared_by is None else None, shared_by)
        met = self._losses.get(key)
        self._losses[key] = (
            Loss(kind, path, None, detail, count) if met is None else replace(met, count=met.count + count)
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in which archives something stands."""

    shown_as: str
    archive: str
    """The archive around it, as shown."""
    archives: int = 0
    codecs: int = 0
    """Compressions around it, within the innermost archive."""


@dataclass(frozen=True, slots=True)
class _Header:
    """What an archive says about a member."""

    name: str
    size_bytes: int
    kind: str
    """file, folder, other (link, device, pipe), sparse or encoded."""


class _Members:
    """The members of one archive. Of those with one name the last counts, as with tar -x."""

    def __init__(self, unpacker: Unpacker, place: _Place) -> None:
        self._unpacker, self._place = unpacker, place
        self._by_name: dict[str, list[Artefact]] = {}
        self.files = 0
        """Members that are no folders."""

    def found(self) -> list[Artefact]:
        """Everything in them, in the order of the archive."""
        return [artefact for artefacts in self._by_name.values() for artefact in artefacts]

    def take(self, header: _Header, data: _Stream) -> bool:
        """Reads a member; False once the archive has more of them than are read."""
        unpacker, limits, within = self._unpacker, self._unpacker._limits, self._place.shown_as
        unpacker._entries += 1
        unpacker._files += header.kind != "folder"
        if unpacker._files > limits.members or unpacker._entries > 2 * limits.members:
            detail = (
                f"over {limits.members} members in all archives together; those that follow are left out. {_UNPACK_IT}"
            )
            unpacker._lose("too-large", within, detail)
            return False
        if header.kind == "folder":
            return True
        self.files += 1
        name = _normal(header.name)
        shown = f"{within}!{_printable(name or header.name)}"
        if name is None:
            detail = f"absolute names, and names that lead out of the archive, are not read. {_UNPACK_IT}"
            unpacker._lose("unsafe-name", shown, detail, shared_by=within)
        elif header.kind in _NOT_READ:
            unpacker._lose(_NOT_READ[header.kind][0], shown, _NOT_READ[header.kind][1], shared_by=within)
        elif unpacker._written_bytes + header.size_bytes > limits.expanded_bytes:
            unpacker._lose("too-large", shown, unpacker._all_bytes(), shared_by=within)
        else:
            if name in self._by_name:
                for artefact in self._by_name.pop(name):
                    artefact.file.unlink(missing_ok=True)
                detail = "the archive has members of the same name; the last one of them is read, as tar does"
                unpacker._lose("replaced-member", shown, detail, shared_by=within)
            self._by_name[name] = unpacker._any(data, _Place(shown, within, self._place.archives + 1))
            if data.failure is not None and data.failure.own:
                unpacker._lose(data.failure.kind, shown, data.failure.detail)
        return True


_NOT_READ = {
    "other": ("not-a-file", "links, devices and pipes in an archive are not followed"),
    "sparse": ("sparse-member", "files with holes are not read; pack the archive without tar --sparse"),
    "encoded": ("compressed", "encrypted, or packed by a method other than deflate; unpack it first (unzip)"),
}
"""Loss of each kind of member that is left out."""


def _normal(name: str) -> str | None:
    r"""The name without `.` and doubled slashes; None for one that is absolute, leads upwards, or is none.

    >>> [_normal(name) for name in ("./node0//nccl.log", "../etc/passwd", "/etc/passwd", "C:\\x")]
    ['node0/nccl.log', None, None, None]
    """
    parts = re.split(r"[/\\]", name)
    if not parts[0] or ".." in parts or re.match(r"[A-Za-z]:[/\\]", name) or len(name) > _NAME_LENGTH:
        return None
    return "/".join(part for part in name.split("/") if part not in ("", ".")) or None


def _printable(name: str) -> str:
    """The name as it can be shown: no control characters, no bytes that are not UTF-8."""
    return "".join(c if c.isprintable() else "\ufffd" for c in name[:_NAME_LENGTH])


class _Failure(Exception):  # noqa: N818 - what became of a stream, as data
    """Why a stream ends before its time. `own`: it was met in this stream, not in the one that it is a part of."""

    def __init__(self, kind: str, detail: str, *, own: bool = True) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.own = kind, detail, own


class _Stream:
    """Pieces of bytes, read once and forwards. Ends at a failure, which it keeps: bytes before that are never lost."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held, self._at = b"", 0
        self.position = 0
        """Bytes taken so far."""
        self.failure: _Failure | None = None
        self.abandoned = False

    def peek(self, size: int) -> bytes:
        """The next bytes, which stay; fewer at the end."""
        while len(self._held) - self._at < size and self._more():
            pass
        return self._held[self._at : self._at + size]

    def take(self, size: int) -> bytes:
        """Up to so many bytes; none at the end."""
        if self._at == len(self._held):
            self._held, self._at = b"", 0
            self._more()
        whole = self._at == 0 and len(self._held) <= size
        taken = self._held if whole else self._held[self._at : self._at + size]
        self._at += len(taken)
        self.position += len(taken)
        return taken

    def exactly(self, size: int) -> bytes:
        """So many bytes; fewer at the end."""
        head = self.peek(size)
        self._at += len(head)
        self.position += len(head)
        return head

    def pieces(self, size: int | None = None) -> Iterator[bytes]:
        """The next `size` bytes, or all. Raises _Failure if there are fewer."""
        left = size
        while left is None or left > 0:
            piece = self.take(_PIECE_BYTES if left is None else min(left, _PIECE_BYTES))
            if not piece:
                if left is not None:
                    raise _Failure(self.failure.kind if self.failure else "truncated", "", own=False)
                return
            if left is not None:
                left -= len(piece)
            yield piece

    def skip(self, size: int | None = None) -> None:
        """Reads over so many bytes, or to the end."""
        end = None if size is None else self.position + size
        while (end is None or self.position < end) and self.take(
            _PIECE_BYTES if end is None else min(end - self.position, _PIECE_BYTES)
        ):
            pass

    def abandon(self) -> None:
        """Leaves the rest unread."""
        self._pieces, self._held, self._at, self.abandoned = iter(()), b"", 0, True

    def _more(self) -> bool:
        try:
            while not (piece := next(self._pieces, None)):
                if piece is None:
                    return False
        except _Failure as failure:
            self.failure, self._pieces = failure, iter(())
            return False
        self._held, self._at = (self._held[self._at :] + piece if self._at < len(self._held) else piece), 0
        return True


def _read(opened: BinaryIO, progress: Callable[[int], None] | None) -> Iterator[bytes]:
    while True:
        try:
            piece = opened.read(_PIECE_BYTES)
        except OSError as error:
            raise _Failure("unreadable", f"cannot be read to its end: {error.strerror}. {_FETCH_AGAIN}") from error
        if not piece:
            return
        if progress is not None:
            progress(len(piece))
        yield piece


# Compressed streams


class _Decoder(Protocol):
    """Takes one compressed stream apart; a file may hold many, one after the other."""

    eof: bool
    needs_input: bool
    feed_bytes: int

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        """What comes out, and what of the input is left."""
        ...


class _Gzip:
    """zlib raises for a whole piece at once; the piece is then taken in ever smaller parts, up to the damage."""

    feed_bytes = _FEED_BYTES
    needs_input = True

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._step_bytes = _PIECE_BYTES
        self.eof = False

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        while True:
            before = self._decoder.copy()
            try:
                out = self._decoder.decompress(data, self._step_bytes)
            except zlib.error:
                if self._step_bytes == 1:
                    raise
                self._decoder, self._step_bytes = before, self._step_bytes // 4
                continue
            self.eof = self._decoder.eof
            return out, self._decoder.unused_data if self.eof else self._decoder.unconsumed_tail


class _Zstd:
    feed_bytes = _ZSTD_FEED_BYTES
    needs_input = True

    def __init__(self) -> None:
        self._decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj()
        self.eof = False

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        out = self._decoder.decompress(data[:_ZSTD_FEED_BYTES])
        self.eof = self._decoder.eof
        return out, (self._decoder.unused_data if self.eof else b"") + data[_ZSTD_FEED_BYTES:]


class _BlockCodec:
    """bz2 and xz of the standard library."""

    feed_bytes = _FEED_BYTES

    def __init__(self, decoder: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._decoder = decoder
        self.eof, self.needs_input = False, True

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        out = self._decoder.decompress(data, _PIECE_BYTES)
        self.eof, self.needs_input = self._decoder.eof, self._decoder.needs_input
        return out, self._decoder.unused_data if self.eof else b""


_CODECS: Mapping[str, tuple[re.Pattern[bytes], Callable[[], _Decoder]]] = {
    "gzip": (re.compile(rb"\x1f\x8b\x08"), _Gzip),
    "zstd": (re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _Zstd),
    "bzip2": (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), lambda: _BlockCodec(bz2.BZ2Decompressor())),
    "xz": (
        re.compile(rb"\xfd7zXZ\x00"),
        lambda: _BlockCodec(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_WINDOW_BYTES)),
    ),
}
"""First bytes. Sources: RFC 1952, RFC 8878 (skippable frames too, which pzstd begins with), the formats of bzip2 and xz."""
_CODEC_ERRORS = (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError, EOFError)


def _codec_of(head: bytes) -> str | None:
    return next((name for name, (magic, _) in _CODECS.items() if magic.match(head)), None)


def _expanded(source: _Stream, codec: str) -> Iterator[bytes]:
    """What a compressed stream expands to. Raises _Failure at damage and at an early end."""
    new, data, streams = _CODECS[codec][1], b"", 0
    while data := data or source.take(_FEED_BYTES):
        if streams and not (data := data.lstrip(b"\0")):  # tapes and block devices pad with zeros
            continue
        if streams == _STREAMS:
            raise _Failure("too-large", f"over {_STREAMS} compressed streams in a row. {_UNPACK_IT}")
        decoder = new()
        try:
            while not decoder.eof:
                ended = False
                if not data and decoder.needs_input:
                    data = source.take(decoder.feed_bytes)
                    ended = not data
                piece, data = decoder.step(data)
                if piece:
                    yield piece
                elif ended and not decoder.eof:
                    if source.failure is not None:
                        raise _Failure(source.failure.kind, "", own=False)
                    raise _Failure("truncated", f"the {codec} data ends too early. {_FETCH_AGAIN}")
        except _CODEC_ERRORS as error:
            raise _Failure("damaged", f"{codec}: {error}. {_FETCH_AGAIN}") from error
        streams += 1
    if source.failure is not None:
        raise _Failure(source.failure.kind, "", own=False)


# tar


def _is_tar(head: bytes) -> bool:
    block = head[:_BLOCK_BYTES]
    if len(block) == _BLOCK_BYTES and not block[257]:  # older than POSIX
        return _tar_header(block) is not None
    return block[257:263] in (b"ustar\0", b"ustar ") and block[263:265] in (b"00", b" \0", b"\0\0")


def _tar_header(block: bytes) -> tarfile.TarInfo | None:
    """The header that this block is, checksum included."""
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None
    return header if header.size >= 0 else None


class _TarHeaders:
    """Headers of a tar stream, whose reader takes or skips the data of each: ustar, GNU and pax, also several in a row."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self.damaged_blocks = 0
        """Blocks that should have been a header and were none."""
        self.oversized = 0
        self.cut = False
        """The end mark, two blocks of zeros, is missing."""

    def __iter__(self) -> Iterator[_Header]:
        name: str | None = None
        records: dict[str, str] = {}
        marked = lost = False
        while block := self._stream.exactly(_BLOCK_BYTES):
            if len(block) < _BLOCK_BYTES:
                marked = marked and not block.strip(b"\0")
                break
            if not any(block):
                marked = True
                continue
            looks = not (lost or marked) or block[257:262] == b"ustar"
            header = _tar_header(block) if looks else None
            if header is None:
                if not marked:  # what follows the end mark is padding
                    self.damaged_blocks += 1
                    lost = True
                continue
            marked = lost = False
            kind, size = header.type, header.size
            if kind in (b"L", b"K", b"x", b"X", b"g"):
                data = self._meta(size)
                if kind == b"L" and data is not None:
                    name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
                elif kind in (b"x", b"X") and data is not None:
                    records = _pax_records(data)
                continue
            shown = records.get("path") or name or header.name
            if records.get("size", "").isascii() and records.get("size", "").isdigit():
                size = int(records["size"][:20])
            if kind == b"S" and block[482]:  # more of the map of holes follows; GNU tar, Sparse Headers in its manual
                while len(more := self._stream.exactly(_BLOCK_BYTES)) == _BLOCK_BYTES and more[504]:
                    pass
            sparse = kind == b"S" or any(key.startswith("GNU.sparse.") for key in records)
            name, records = None, {}
            if kind == b"V":  # the label of a volume
                continue
            if kind in (b"5", b"D") or shown.endswith("/"):
                yield _Header(shown, size if kind != b"5" else 0, "folder")
            elif kind in (b"1", b"2", b"3", b"4", b"6"):
                yield _Header(shown, 0, "other")
            else:
                yield _Header(shown, size, "sparse" if sparse else "other" if kind == b"M" else "file")
        self.cut = self.cut or not marked

    def _meta(self, size: int) -> bytes | None:
        padded = -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
        if size > _META_BYTES:
            self.oversized += 1
            self._stream.skip(padded)
            return None
        return self._stream.exactly(padded)[:size]


def _pax_records(data: bytes) -> dict[str, str]:
    r"""Keys and values of a pax header, up to the first that is damaged. Source: POSIX, pax, Extended Header.

    >>> _pax_records(b"99 path=a/b\n")
    {}
    >>> _pax_records(b"12 path=a/b\n")
    {'path': 'a/b'}
    """
    records, at = {}, 0
    while match := re.compile(rb"(\d{1,7}) ([^=\n]+)=").match(data, at):
        end = at + int(match[1])
        if end <= match.end() or data[end - 1 : end] != b"\n":
            break
        key, value = match[2], data[match.end() : end - 1]
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        at = end
    return records


# zip

_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    struct.error,
)


def _is_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


@contextlib.contextmanager
def _open_zip(file: Path) -> Iterator[zipfile.ZipFile]:
    """A zip file whose table of contents is bounded before it is read into memory."""
    with file.open("rb") as opened, zipfile.ZipFile(cast("IO[bytes]", _BoundedReads(opened))) as archive:
        yield archive


class _BoundedReads:
    """A file that refuses to be read in one piece larger than a table of contents may be."""

    def __init__(self, opened: BinaryIO) -> None:
        self._opened = opened
        self.seek, self.tell, self.seekable = opened.seek, opened.tell, opened.seekable

    def read(self, size: int = -1) -> bytes:
        if size > _ZIP_TABLE_BYTES:
            raise _Failure("too-large", f"its table of contents is over {_ZIP_TABLE_BYTES >> 20} MiB. {_UNPACK_IT}")
        return self._opened.read(size if size >= 0 else _ZIP_TABLE_BYTES)


def _zip_header(info: zipfile.ZipInfo) -> _Header:
    mode = info.external_attr >> 16
    if info.is_dir():
        kind = "folder"
    elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        kind = "other"
    elif info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        kind = "encoded"
    else:
        kind = "file"
    return _Header(info.filename, info.file_size, kind)
