"""XML without surprises: expat, entity declarations and DTDs refused, depth and size bounded, a line for every element.

Also reads a fragment: several elements side by side, elements whose end was cut off, end tags whose start was cut off,
words of a report around them. What had to be bent to read it comes back as losses.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

from busbw.errors import InputError, Loss, count_losses

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_ELEMENTS", "XmlElement", "XmlKind", "read_elements", "write_elements"]

MAX_BYTES = 16 * 1024 * 1024
"""Largest document read. A topology of a 72-GPU system takes some 100 KB; the bound is a guess with room."""
MAX_DEPTH = 64
"""Deepest nesting read. NCCL nests cpu, some PCI bridges, gpu, nvlink: below 20."""
MAX_ELEMENTS = 200_000
"""Most elements read. NCCL allows 640 children an element (src/graph/xml.h); the bound is a guess with room."""
_MAX_REPAIRS = 16
_FRAGMENT_ROOT = "busbw.fragment"


@dataclass(frozen=True, slots=True)
class XmlKind:
    """What a document is taken for, in words, and how large one may be."""

    what: str = "topology"
    source: str = "as NCCL wrote it (NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE)"
    most_bytes: int = MAX_BYTES
    most_elements: int = MAX_ELEMENTS


_TOPOLOGY = XmlKind()


@dataclass(frozen=True, slots=True)
class XmlElement:
    """One element: name, attributes in their order, children in theirs. Where it stood is no part of its value."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[XmlElement, ...] = ()
    line: int = field(default=0, compare=False)
    """1-based line of the start tag; 0 for an element that was not read from a file."""

    def get(self, name: str) -> str | None:
        """The value of an attribute, None where it is absent."""
        for key, value in self.attributes:
            if key == name:
                return value
        return None


@dataclass(slots=True)
class _Open:
    name: str
    attributes: tuple[tuple[str, str], ...]
    line: int
    children: list[XmlElement] = field(default_factory=list)

    def closed(self) -> XmlElement:
        return XmlElement(self.name, self.attributes, tuple(self.children), self.line)


class _Builder:
    """Collects expat's events into elements; refuses what could grow beyond the input."""

    def __init__(self, path: str, kind: XmlKind) -> None:
        self.path, self.kind = path, kind
        self.stack = [_Open("", (), 0)]
        self.text_line: int | None = None
        self.elements = 0
        self.parser = expat.ParserCreate(encoding="utf-8")
        self.parser.ordered_attributes = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._entity

    def _start(self, name: str, attributes: list[str]) -> None:
        self.elements += 1
        if self.elements > self.kind.most_elements:
            raise InputError(
                f"{self.path}: more than {self.kind.most_elements} XML elements. This is no {self.kind.what}; pass the right file."
            )
        if len(self.stack) > MAX_DEPTH + 1:
            raise InputError(
                f"{self.path}:{self.parser.CurrentLineNumber}: XML nested deeper than {MAX_DEPTH}. "
                f"This is no {self.kind.what}; pass the right file."
            )
        pairs = tuple(zip(attributes[::2], attributes[1::2], strict=True))
        self.stack.append(_Open(name, pairs, self.parser.CurrentLineNumber))

    def _end(self, _name: str) -> None:
        element = self.stack.pop().closed()
        self.stack[-1].children.append(element)

    def _text(self, text: str) -> None:
        if self.text_line is None and not text.isspace():
            self.text_line = self.parser.CurrentLineNumber

    def _doctype(self, *_declaration: object) -> None:
        raise InputError(_refusal(self.path, self.parser.CurrentLineNumber))

    def _entity(self, *_declaration: object) -> None:
        raise InputError(_refusal(self.path, self.parser.CurrentLineNumber))

    def finish(self) -> tuple[XmlElement, ...]:
        """Closes what is still open and returns the elements at the top."""
        while len(self.stack) > 1:
            self._end("")
        return tuple(self.stack[0].children)


def read_elements(data: bytes | str, path: str, kind: XmlKind = _TOPOLOGY) -> tuple[tuple[XmlElement, ...], list[Loss]]:
    """The elements at the top of a document (one) or of a fragment of one (any number), and what was lost on the way.

    Losses: `xml-fragment` (no single complete root element), `xml-unclosed-element`, `xml-stray-end-tag`, `xml-damaged`
    (nothing after the line could be read), `xml-stray-text`. Raises InputError where no element can be read at all,
    for a DOCTYPE or an entity declaration, and beyond MAX_DEPTH or what the kind allows.
    """
    text = _decoded(data, path, kind)
    document = _Builder(path, kind)
    try:
        document.parser.Parse(text.encode(), True)
    except expat.ExpatError:
        return _read_fragment(text, path, kind)
    losses = []
    if document.text_line is not None:
        losses.append(_stray_text(path, document.text_line))
    return document.finish(), losses


def write_elements(elements: Sequence[XmlElement], indent: str = "  ") -> str:
    """The elements as XML text, one start tag a line; `read_elements` of it gives the same elements."""
    lines: list[str] = []
    for element in elements:
        _write(element, 0, indent, lines)
    return "\n".join(lines) + "\n"


def _write(element: XmlElement, depth: int, indent: str, lines: list[str]) -> None:
    attributes = "".join(f' {name}="{_escaped(value)}"' for name, value in element.attributes)
    if not element.children:
        lines.append(f"{indent * depth}<{element.name}{attributes}/>")
        return
    lines.append(f"{indent * depth}<{element.name}{attributes}>")
    for child in element.children:
        _write(child, depth + 1, indent, lines)
    lines.append(f"{indent * depth}</{element.name}>")


def _escaped(value: str) -> str:
    # Newlines and tabs are written as references, or a reader would turn them into spaces.
    for character, reference in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        value = value.replace(character, reference)
    return re.sub("[\t\n\r]", lambda found: f"&#{ord(found.group())};", value)


def _decoded(data: bytes | str, path: str, kind: XmlKind) -> str:
    if len(data) > kind.most_bytes:
        raise InputError(f"{path}: larger than {kind.most_bytes} bytes. This is no {kind.what}; pass the right file.")
    if isinstance(data, bytes):
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        data = data.decode("utf-16" if wide else "utf-8", errors="replace")
    # A lone surrogate has no UTF-8 form; a NUL is no XML and would hide the rest of a line.
    text = data.encode("utf-8", errors="replace").decode().removeprefix("\ufeff")
    declaration = re.match(r"\s*<\?xml[^>]*\?>", text)
    if declaration is None:
        return text
    # The declared encoding is void, the text is decoded already; its newlines stay, so that lines keep their numbers.
    return re.sub(r"[^\n]", "", declaration.group()) + text[declaration.end() :]


def _read_fragment(text: str, path: str, kind: XmlKind) -> tuple[tuple[XmlElement, ...], list[Loss]]:
    declaration = re.search(r"<!\s*(DOCTYPE|ENTITY|ELEMENT|ATTLIST|NOTATION)\b|<!\[(?!CDATA\[)", text, re.IGNORECASE)
    if declaration is not None:
        raise InputError(_refusal(path, text.count("\n", 0, declaration.start()) + 1))
    opened = f"<{_FRAGMENT_ROOT}>"
    body = bytearray((opened + text).encode())
    losses: list[Loss] = []
    for _ in range(_MAX_REPAIRS):
        builder = _Builder(path, kind)
        try:
            builder.parser.Parse(bytes(body), False)
            _close(builder, path, losses)
        except expat.ExpatError as error:
            at = builder.parser.ErrorByteIndex
            stray = re.compile(rb"</\s*[^<>]*>").match(body, _start_of_tag(body, at))
            mismatch = error.code in {
                expat.errors.codes[expat.errors.XML_ERROR_TAG_MISMATCH],
                expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT],
            }
            if mismatch and stray is not None:
                line = body.count(b"\n", 0, stray.start()) + 1
                tag = stray.group().decode(errors="replace")
                detail = f"{tag[:40]} closes nothing that is open; it was left out"
                losses.append(Loss("xml-stray-end-tag", path, line, detail))
                body[stray.start() : stray.end()] = b" " * (stray.end() - stray.start())
                continue
            what = expat.ErrorString(error.code)
            detail = f"{what}; nothing after this point was read. Pass the file as the tool wrote it"
            losses.append(Loss("xml-damaged", path, builder.parser.ErrorLineNumber, detail))
        break
    else:
        detail = f"more than {_MAX_REPAIRS} stray end tags; the rest was not read"
        losses.append(Loss("xml-damaged", path, None, detail))
    unclosed = [open_ for open_ in builder.stack[1:] if open_.name != _FRAGMENT_ROOT]
    for open_ in unclosed:
        detail = f"<{open_.name}> is never closed; taken as cut at the end"
        losses.append(Loss("xml-unclosed-element", path, open_.line, detail))
    if builder.text_line is not None:
        losses.append(_stray_text(path, builder.text_line))
    roots = [element for top in builder.finish() for element in top.children if top.name == _FRAGMENT_ROOT]
    if not roots:
        raise InputError(f"{path}: no XML element found. Pass the file {kind.source}.")
    detail = "not one complete document; its elements were read as they stand"
    return tuple(roots), [Loss("xml-fragment", path, roots[0].line, detail), *count_losses(losses)]


def _close(builder: _Builder, path: str, losses: list[Loss]) -> None:
    """Ends the fragment; text cut inside a tag is a loss, an element left open is counted by the caller."""
    try:
        builder.parser.Parse(f"</{_FRAGMENT_ROOT}>".encode(), True)
    except expat.ExpatError as error:
        if error.code != expat.errors.codes[expat.errors.XML_ERROR_TAG_MISMATCH]:
            detail = "the text ends inside a tag, which was left out. Pass the file as the tool wrote it"
            losses.append(Loss("xml-damaged", path, builder.parser.ErrorLineNumber, detail))


def _start_of_tag(body: bytearray, at: int) -> int:
    """Where the tag that holds a position begins; expat points at the `<` of the tag or at the name after `</`."""
    return at if body[at : at + 1] == b"<" else max(body.rfind(b"<", 0, at + 1), 0)


def _stray_text(path: str, line: int) -> Loss:
    return Loss("xml-stray-text", path, line, "text between elements; it was ignored")


def _refusal(path: str, line: int) -> str:
    return (
        f"{path}:{line}: a DOCTYPE or entity declaration, which NCCL never writes. "
        "Such a file can grow without bound when read; remove the declaration if you trust it."
    )
