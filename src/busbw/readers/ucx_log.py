"""Log of UCX and of UCC, which prints through it: errors and warnings, chosen transports, tables of UCX_PROTO_INFO.

    [1796041398.071678] [host0:8787 :0]     ucp_context.c:2725 UCX  INFO  Version 1.22.0 (loaded from /usr/lib/libucp.so.0)
    [1796041398.100137] [host0:8787 :0]      ucp_worker.c:1991 UCX  INFO    perftest intra-node cfg#0 tag(sysv/memory cma/memory)
    [1796041398.100444] [host0:8787 :0]   | 5029..inf | (?) rendezvous zero-copy read from remote | cma/memory  |

The head (time, host, process) is taken off by the scanner; format in ucs/debug/log.c. The levels INFO and below have templates only
for what tells the transports: a word so common may select no template. What messages.py knows better goes there first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template
from busbw.readers.plain_rows import by_writer, event_row

__all__ = ["READER"]

_ERROR = "{file:w}:{file_line:d} UCX ERROR "
TEMPLATES: tuple[Template, ...] = (
    Template("ucx.caught_signal", "Caught signal {signal:d} ({name:s}", "UCX ucs/debug/debug.c", "error"),
    Template("ucx.version", "Version {version:w} (loaded from {path:s})", "UCX ucp_context.c, 1.14", "info"),
    Template("ucx.environment", "UCX_* env variables: {settings:s}", "UCX ucs/config/parser.c", "info"),
    Template("ucx.environment", "UCX_* env variable: {settings:s}", "UCX ucs/config/parser.c", "info"),
    Template("ucx.unused_variable", "unused env variable: {names:s}", "UCX ucs/config/parser.c", "info"),
    Template("ucx.unused_variable", "unused env variables: {names:s}", "UCX ucs/config/parser.c", "info"),
    Template("ucx.invalid_variable", "parser.c:{_line:d} UCX ERROR Invalid value for {name:w}: '{value:s}'", "UCX ucs/config/parser.c", "error"),
    Template("ucx.lanes", "ucp_worker.c:{_line:d} UCX INFO ep_cfg[{index:d}]: {lanes:s}", "UCX ucp_worker.c, to 1.12", "info"),
    Template("ucx.lanes", "ucp_worker.c:{_line:d} UCX INFO {context:w} {scope:w} cfg#{index:d} {lanes:s}", "UCX ucp_worker.c", "info"),
    Template("ucx.connect_failed", "connect(fd={fd:d}, dest_addr={address:w}) failed: {error:s}", "UCX ucs/sys/sock.c", "error"),
    Template("ucx.shared_memory_refused", "mm ep failed to connect to remote FIFO id {id:x}", "UCX uct/sm/mm/base/mm_ep.c", "error"),
    Template("ucx.shared_memory_refused", "open(file_name=/proc/{pid:d}/fd/{fd:d} {flags:w} failed: {error:s}", "UCX uct/sm/mm/posix", "error"),
    Template("ucx.too_many_resources", "exceeded transports/devices limit ({requested:d} requested, up to {most:d} are supported)", "UCX ucp_context.c", "error"),
    Template("ucx.register_failed", "failed to register address {address:x} {rest:s}", "UCX ucp_mm.c", "error"),
    Template("ucx.cuda_call_failed", _ERROR + "cu{call:w}({arguments:s}) failed: {error:s}", "UCX uct/cuda", "error"),
    Template("ucx.error", "UCX ERROR {message:s}", "UCX ucs/debug/log.c; what no other template knows, so it may be harmless", "info"),
    Template("ucx.fatal", "{file:w}:{file_line:d} UCX FATAL {message:s}", "UCX ucs/debug/log.c", "error"),
    Template("ucx.assertion", "{file:w}:{file_line:d} Assertion `{assertion:s}' failed{rest:s}", "UCX ucs/debug/assert.c", "error"),
    Template("ucx.warning", "{file:w}:{file_line:d} UCX WARN {message:s}", "UCX ucs/debug/log.c", "warning"),
    Template("ucx.diagnostic", "{file:w}:{file_line:d} UCX DIAG {message:s}", "UCX ucs/debug/log.c", "info"),
    Template("ucc.score_of", "ucc_coll_score_map.c:{_line:d} UCC INFO {collective:w}:$", "UCC ucc_coll_score_map.c", "info"),
    Template("ucc.scores", "ucc_coll_score_map.c:{_line:d} UCC INFO {memory:w}: {ranges:s}", "UCC ucc_coll_score_map.c", "info"),
    Template("ucc.team", "COLL_SCORE_MAP (team_id {team:d}", "UCC ucc_team.c", "info"),
    Template("ucc.error", "{file:w}:{file_line:d} UCC ERROR {message:s}", "UCC utils/ucc_log.h", "error"),
    Template("ucc.error", "{file:w}:{file_line:d} TL_{component:w} ERROR {message:s}", "UCC components/tl", "error"),
    Template("ucc.error", "{file:w}:{file_line:d} CL_{component:w} ERROR {message:s}", "UCC components/cl", "error"),
    Template("ucc.warning", "{file:w}:{file_line:d} UCC WARN {message:s}", "UCC utils/ucc_log.h", "warning"),
)  # fmt: skip
_CELLS = re.compile(r"\|(.*)\|")
_TITLE = re.compile(r"(?P<context>\S+) (?P<scope>self|intra-node|inter-node|\S+)(?: cfg)? ?cfg#(?P<index>\d{1,6})")
_SIZES = re.compile(r"(?P<low>\d[\dKMGT.]*)\.\.(?P<high>\d[\dKMGT]*|inf)")
_SIGNATURE = re.compile(r"^\s*\|.* cfg#\d")


class UcxLogReader(Lines):
    """Messages of UCX and UCC, and the protocols that UCX chose by size."""

    name = "ucx-log"
    fallback = True
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """An event ucx.protocol for each range of sizes: endpoint configuration, operation, low and high size, protocol, lanes.

        Tables of several processes of one host that print at once may be mixed; then a row goes to the last title above it.
        """
        losses = Losses(artefact.path)
        for written in by_writer(lines):
            events = list(_protocols(artefact, written, losses))
            if events:
                yield rows_of("events", events)
        yield from losses


READER = UcxLogReader()


def _protocols(artefact: Artefact, lines: Sequence[PlainLine], losses: Losses) -> Iterator[dict[str, Any]]:
    title: dict[str, str] | None = None
    for line in lines:
        row = _CELLS.fullmatch(line.text.strip())
        if row is None:
            continue
        cells = [cell.strip() for cell in row[1].split("|")]
        named = _TITLE.fullmatch(cells[0])
        if named is not None:
            title = {**named.groupdict(), "operation": cells[1] if len(cells) == 2 else ""}
        elif title is not None and len(cells) == 1 and not title["operation"]:
            title["operation"] = cells[0]
        elif title is not None and (sizes := _SIZES.fullmatch(cells[0])) is not None:
            if len(cells) == 3:
                fields = {**title, **sizes.groupdict(), "protocol": cells[1], "lanes": cells[2]}
                yield event_row(artefact, line, "ucx.protocol", fields)
            else:
                losses.add("damaged-row", line.number, f"a range of sizes with {len(cells)} cells, 3 are usual")
