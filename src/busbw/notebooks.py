"""Small HTML tables that results show in notebooks; whole reports are the business of `busbw.reports`."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["html_table"]

MOST_ROWS = 60
"""Rows that are shown: a notebook's cell is a glance."""


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table; text is escaped, and rows beyond MOST_ROWS are counted.

    >>> html_table(["size"], [["1 < 2"]])
    '<table><thead><tr><th>size</th></tr></thead><tbody><tr><td>1 &lt; 2</td></tr></tbody></table>'
    """
    listed = list(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in listed[:MOST_ROWS])
    more = len(listed) - MOST_ROWS
    told = caption if more <= 0 else f"{caption}; {more} more rows" if caption else f"{more} more rows"
    shown = f"<caption>{html.escape(told)}</caption>" if told else ""
    return f"<table>{shown}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
