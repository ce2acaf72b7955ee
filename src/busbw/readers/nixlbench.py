"""nixlbench of NIXL: its configuration and its tables, with the columns of 2025 and of today, with and without those of pairwise runs.

B/W is in the unit that its header names: GB is 1e9 bytes, MiB and GiB are powers of two. A size is one block; Avg Lat. is the time of a
block, the whole time divided by iterations and batch. Each batch size is a table (a curve) of its own; so is the aggregate of pairwise
runs. p99 is that of the transfer phase (P99 Tx); the phases of preparation and posting have no column and are not kept. `Network Util`
is the aggregate over 50 GB/s a pair, which is compiled in, and not kept.

The configuration may hold secrets (keys of S3, a connection string, paths): only options of the list below leave this reader.
Source: ai-dynamo/nixl benchmark/nixlbench/src/utils/utils.cpp at 8770b65 and its older versions; outputs in public issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, place
from busbw.readers.losses import add_broken_row
from busbw.readers.text_values import FIGURE, finite, nanoseconds
from busbw.units import GB

__all__ = ["KEPT_OPTIONS", "READER"]

KEPT_OPTIONS = frozenset({
    "runtime_type", "worker_type", "backend", "enable_pt", "progress_threads", "enable_vmm", "recreate_xfer", "reregister_mem",
    "prepared_xfer", "pipeline_depth", "use_hugepages", "device_list", "gds_batch_pool_size", "gds_batch_limit", "gds_mt_num_threads",
    "posix_api_type", "posix_ios_pool_size", "posix_kernel_queue_size", "obj_scheme", "obj_use_virtual_addressing", "obj_req_checksum",
    "num_files", "storage_enable_direct", "randomize_location_mode", "initiator_seg_type", "target_seg_type", "scheme", "mode", "op_type",
    "check_consistency", "total_buffer_size", "num_initiator_dev", "num_target_dev", "start_block_size", "max_block_size",
    "start_batch_size", "max_batch_size", "num_iter", "warmup_iter", "large_blk_iter_ftr", "num_threads", "use_device_api",
})  # fmt: skip
"""Options whose value is a number or one of few words. Keys, tokens, account names, paths, buckets, addresses and what comes new is dropped."""

_OPTION = re.compile(r"\S.{0,120}?\(--([a-z][a-z_]{1,40})(?:=.*?)?\)\s*: (.*)")
_VALUE = re.compile(r"[A-Za-z0-9_,.:/ ()-]{0,200}", re.ASCII)
_SIGNATURE = re.compile(r"^Block Size \(B\)\s+Batch Size\s|^NIXLBench Configuration\s*$")
_HEADER = re.compile(r"Block Size \(B\)\s{2,}Batch Size\s{2,}.*")
_RULE = re.compile(r"[*-]{20,}\s*")
_GAP = re.compile(r"\s{2,}")
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_UNITS = {"b/w (gb/sec)": GB, "b/w (gib/sec)": float(2**30), "b/w (mib/sec)": float(2**20)}
_AGGREGATE = "aggregate b/w (gb/sec)"


class NixlbenchReader(Lines):
    """Output of nixlbench, anywhere in a text."""

    name = "nixlbench"
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a row, two with the aggregate; events nixlbench.configuration and nixlbench.table."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        banner: dict[str, Any] | None = None
        header: tuple[str, ...] = ()
        curves: dict[tuple[int, str], int] = {}
        tables = 0
        for line in lines:
            text = line.text
            if len(text) > 4096:
                continue
            if text.startswith("NIXLBench Configuration"):
                banner = place(artefact, line) | {
                    "event": "nixlbench.configuration",
                    "level": "info",
                    "text": text.strip(),
                    "fields": [],
                }
                events.append(banner)
                header = ()
            elif _HEADER.fullmatch(text) is not None:
                header, banner, curves = tuple(_GAP.split(text.strip().lower())), None, {}
                if not any(name in _UNITS for name in header):
                    losses.add(
                        "unknown-unit",
                        line.number,
                        "the table has no column of bandwidth in a unit known here; it stays unknown",
                    )
            elif banner is not None and (option := _OPTION.fullmatch(text)) is not None:
                name, value = option[1], option[2].strip()
                if name in KEPT_OPTIONS and _VALUE.fullmatch(value):
                    banner["fields"].append((name, value))
            elif header and text[:1].isdigit():
                values = _values(header, line, losses)
                if values is None:
                    continue
                batch = int(values["batch size"])
                for quantity, row in _measurements(values):
                    key = (batch, quantity)
                    if key not in curves:
                        curves[key], tables = tables, tables + 1
                        fields = [("table_index", str(curves[key])), ("batch_size", str(batch)), ("quantity", quantity)]
                        events.append(
                            place(artefact, line)
                            | {
                                "event": "nixlbench.table",
                                "level": "info",
                                "text": text.strip()[:512],
                                "fields": fields,
                            }
                        )
                    rows.append(place(artefact, line) | row | {"table_index": curves[key]})
        if rows:
            yield rows_of("measurements", rows)
        if events:
            yield rows_of("events", events)
        yield from losses


READER = NixlbenchReader()


def _values(header: Sequence[str], line: PlainLine, losses: Losses) -> dict[str, str] | None:
    """The values of a row by column; None for the lines of others and for damage, which is counted."""
    tokens = line.text.split()
    for i, name in enumerate(header):
        shape = _COUNT if name in ("block size (b)", "batch size") else FIGURE
        if i == len(tokens) or shape.fullmatch(tokens[i]) is None:
            if i < 2 and i < len(tokens):
                return None
            add_broken_row(losses, line.number, i + 1, len(header), name, cut=i >= len(tokens) - 1)
            return None
    # The last figure of a line has one decimal today, up to six digits in 2025; one without any may be cut within its number.
    if "." not in tokens[len(header) - 1] and finite(tokens[len(header) - 1]) is not None and "tx" in header[-1]:
        add_broken_row(losses, line.number, len(header), len(header), header[-1], cut=True)
        return None
    values = dict(zip(header, tokens, strict=False))
    # Tables of 2025 give one bandwidth in three units, with six digits: they must agree, or the last one is cut.
    rates = [rate * _UNITS[name] for name in _UNITS if (rate := finite(values.get(name))) is not None]
    if rates and max(rates) - min(rates) > 1.1e-5 * max(rates):
        losses.add(
            "damaged-row",
            line.number,
            "the bandwidths of a row in its several units differ; it is cut or damaged: run it again",
        )
        return None
    return values


def _measurements(values: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    unit = next((name for name in values if name in _UNITS), None)  # the first: it is never the one that is cut
    rate = finite(values.get(unit)) if unit is not None else None
    row = {
        "tool": "nixlbench",
        "size_bytes": int(values["block size (b)"]),
        "time_ns": nanoseconds(values.get("avg lat. (us)")),
        "algbw_bytes_per_s": None if rate is None or unit is None else rate * _UNITS[unit],
        "p99_ns": nanoseconds(values.get("p99 tx (us)")),
    }
    yield "worker", row
    total = finite(values.get(_AGGREGATE))
    if total is not None:
        yield "aggregate", {"tool": "nixlbench", "size_bytes": row["size_bytes"], "algbw_bytes_per_s": total * GB}
