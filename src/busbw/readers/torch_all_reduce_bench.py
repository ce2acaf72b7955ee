"""all_reduce_bench.py of stas00/ml-engineering: a Markdown table of payload, busbw and algbw, and the environment under it.

GBps is 1e9 bytes/s; a payload is a power of two, or cut to a whole unit where it was set by hand. No times are printed.
Source: network/benchmarks/all_reduce_bench.py of 2024 to 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place
from busbw.units import GB, parse_size

__all__ = ["READER"]

TEMPLATES: tuple[Template, ...] = (
    Template("torch_bench.software", "^- software: torch={torch:w}, cuda={cuda:w}, nccl={nccl:s}", "all_reduce_bench.py", "info"),
)  # fmt: skip
_SENTENCE = re.compile(r"The average bandwidth of (\w+) over (\d{1,7}) ranks \((\d{1,6}) warmups / (\d{1,9}) trials.*")
_HEADER = re.compile(r"\|\s*payload\s*\|\s*busbw\s*\|\s*algbw\s*\|\s*")
_SIGNATURE = re.compile(r"^\|\s*payload\s*\|\s*busbw\s*\|")
_RULE = re.compile(r"\|[\s:|-]+\|\s*")
_ROW = re.compile(r"\|\s*(\d{1,6}[KMGTPE]?iB)\s*\|\s*(\d{1,9}\.\d{1,2})GBps\s*\|\s*(\d{1,9}\.\d{1,2})GBps\s*\|\s*")
_GPU = re.compile(r"- hardware: .*?name='([^']{1,120})'")


class TorchAllReduceBenchReader(Lines):
    """Output of all_reduce_bench.py, anywhere in a text."""

    name = "torch-all-reduce-bench"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a row; the GPU's name as a row of `devices`."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        devices: list[dict[str, Any]] = []
        ranks: int | None = None
        trials: int | None = None
        index = -1
        open_table = False
        for line in lines:
            text = line.text
            if len(text) > 4096:
                continue
            if _HEADER.fullmatch(text) is not None:
                open_table, index = True, index + 1
            elif open_table and text.startswith("|"):
                row = _ROW.fullmatch(text)
                if row is not None:
                    rows.append(place(artefact, line) | {
                        "tool": "all_reduce_bench.py", "table_index": index, "collective": "all_reduce", "size_bytes": parse_size(row[1]),
                        "ranks": ranks, "dtype": "float", "redop": "sum", "in_place": True, "iterations": trials,
                        "busbw_bytes_per_s": float(row[2]) * GB, "algbw_bytes_per_s": float(row[3]) * GB,
                    })  # fmt: skip
                elif _RULE.fullmatch(text) is None:
                    losses.add(
                        "damaged-row", line.number, "a row of the table is cut or damaged; run the benchmark again"
                    )
            elif (sentence := _SENTENCE.match(text)) is not None:
                ranks, trials, open_table = int(sentence[2]), int(sentence[4]), False
            elif (gpu := _GPU.match(text)) is not None:
                devices.append(place(artefact, line) | {"kind": "gpu", "name": gpu[1]})
        if devices:
            yield rows_of("devices", devices)
        if rows:
            yield rows_of("measurements", rows)
        yield from losses


READER = TorchAllReduceBenchReader()
