"""A page of a report: one HTML file that needs nothing else and asks nobody for anything, whatever stands on it."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import unescape
from importlib.resources import files
from pathlib import Path

from busbw.errors import InputError

__all__ = ["GENERATOR", "Section", "contents", "page_of", "section", "write_page"]


GENERATOR = '<meta name="generator" content="busbw report">'
"""Stands near the top of every report, so that a report is known when it is met again among the files of a job."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that the contents name."""

    anchor: str
    title: str
    html: str


def section(anchor: str, title: str, content: str) -> Section | None:
    """A part with its heading; None without content."""
    if not content:
        return None
    html = f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{title}</h2>\n{content}\n</section>'
    return Section(anchor, title, html)


def contents(sections: Sequence[Section]) -> str:
    """Links to the parts, where there are more than two."""
    links = "".join(f'<li><a href="#{section.anchor}">{section.title}</a></li>' for section in sections)
    return f'<nav aria-label="Contents"><ul class="contents">{links}</ul></nav>' if len(sections) > 2 else ""


def page_of(title: str, body: str, footer: str) -> str:
    """The page. title, body and footer are HTML; styles of tags in the body become classes."""
    body, drawn = _classes(body)
    style, script = _resource("report.css") + drawn, _resource("report.js")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{GENERATOR}
<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<footer><p>{footer}</p></footer>
<script>{script}</script>
</body>
</html>
"""


def write_page(path: Path, render: Callable[[], str]) -> None:
    """Writes what `render` gives under a temporary name beside `path`, then renames it.

    Raises InputError if `path` is there and no file, before anything is rendered, or cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path}: is a folder; name the file of the report, such as {path / 'report.html'}.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is a device or a pipe; a report replaces a file. Give another --report.")
    page = render()
    target = path.resolve()
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=".busbw-report-", delete=False) as out:
            temporary = out.name
            out.write(page.encode("utf-8", "backslashreplace"))
            os.fchmod(out.fileno(), _mode(target))
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise InputError(f"{path}: the report cannot be written: {error.strerror}. Give another --report.") from error


@functools.cache
def _resource(name: str) -> str:
    return files("busbw.reports").joinpath(name).read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """Nothing is fetched; the only style and the only script that count are the two of this page, known by their hashes."""
    return f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()).decode()


def _classes(body: str) -> tuple[str, str]:
    """The body with a class for every distinct `style`, and the rules of these classes: inline styles would need a laxer policy."""
    names: dict[str, str] = {}

    def named(tag: re.Match[str]) -> str:
        return re.sub(
            r' style="([^"]*)"', lambda found: f' class="{names.setdefault(found[1], f"y{len(names)}")}"', tag[0]
        )

    # Text never holds `<` or `>`: it is escaped. So what stands between them is a tag that this package wrote.
    body = re.sub(r"<[^<>]*>", named, body)
    return body, "".join(f".{name}{{{unescape(style).replace('<', '')}}}\n" for style, name in names.items())


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced, else what the user's umask gives a new file."""
    with contextlib.suppress(OSError):
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
