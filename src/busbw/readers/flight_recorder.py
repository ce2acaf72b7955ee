"""Dumps of PyTorch's Flight Recorder, JSON and pickle, versions 2.0 to 2.10: what every rank enqueued, started, completed.

One file a rank (`<prefix><rank>`). Entries are a ring buffer, so sequences start anywhere. JSON has 0 where the pickle has None,
strings where it has integers; gloo leaves `state` at "scheduled" and counts otherwise in pg_status. A pickle is
never run (busbw.readers.pickle_subset). Frames, thread names and paths are left out. Sources: run with torch 2.13.0;
torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from busbw.errors import Loss, Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item
from busbw.readers.json_values import integer, small_integer
from busbw.readers.pickle_subset import LARGEST_PICKLE_BYTES, plain_data

__all__ = ["READER", "version_numbers"]

_SOURCE = "flight-recorder"
_NEWEST = (2, 10)
"""Newest version that was looked at; newer minor ones add fields."""
_JSON_HEAD = re.compile(rb'"entries"\s*:\s*\[|"(?:pg_config|pg_status|nccl_comm_state)"\s*:\s*\{')
_JSON_KEYS = re.compile(rb'"(?:profiling_name|pg_status|collective_seq_id|nccl_comm_state)"\s*:')
_PICKLE_KEYS = (b"profiling_name", b"collective_seq_id", b"pg_config", b"pg_status")
_BLANKS = re.compile(r"[ \t\r\n,]*")
_RANK_IN_NAME = re.compile(r"(?:^|[^0-9.])(\d{1,7})(?:\.(?:json|pkl|pickle|pt|bin|trace|dump|txt))?$")
_SENDER = re.compile(r"send (\d{1,9})->(\d{1,9})")
_RECEIVER = re.compile(r"recv (\d{1,9})<-(\d{1,9})")
_DECODER = json.JSONDecoder(strict=False)
_LARGEST = 2**62
_SMALL = 2**31
MAX_DIMENSIONS = 64
MAX_TENSORS = 65_536
"""Of one collective: a list of one tensor a rank."""
MAX_MEMBERS = 65_536
BATCH_ROWS = 20_000

_OPS = {
    "allreduce": "all_reduce", "allreducecoalesced": "all_reduce", "allreducesparse": "all_reduce",
    "allgather": "all_gather", "allgatherbase": "all_gather", "allgathercoalesced": "all_gather",
    "allgatherintotensor": "all_gather", "allgatherintotensorcoalesced": "all_gather",
    "reducescatter": "reduce_scatter", "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter", "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all", "alltoallbase": "all_to_all", "broadcast": "broadcast", "broadcastoop": "broadcast",
    "reduce": "reduce", "reduceoop": "reduce", "gather": "gather", "scatter": "scatter", "barrier": "barrier",
    "allreducebarrier": "barrier", "send": "send", "recv": "recv",
}  # fmt: skip
_DTYPES = {
    "float": ("float", 4), "half": ("half", 2), "bfloat16": ("bfloat16", 2), "double": ("double", 8), "long": ("int64", 8),
    "int": ("int32", 4), "short": ("int16", 2), "char": ("int8", 1), "byte": ("uint8", 1), "bool": ("uint8", 1),
    "float8_e4m3fn": ("f8e4m3", 1), "float8_e5m2": ("f8e5m2", 1),
}  # fmt: skip
"""PyTorch's names of types: ours, and bytes of an element."""


def version_numbers(text: Any) -> tuple[int, ...] | None:
    """A version as integers, so that "2.10" comes after "2.4"; None if it is none.

    >>> version_numbers("2.10") > version_numbers("2.4")
    True
    """
    match = re.fullmatch(r"(\d{1,6})(?:\.(\d{1,6}))*", text, re.ASCII) if isinstance(text, str) else None
    return tuple(int(part) for part in match[0].split(".")) if match else None


class FlightRecorderReader:
    """Dumps of PyTorch's Flight Recorder."""

    name = "flight-recorder"

    def sniff(self, head: bytes) -> bool:
        """By keys that only these dumps have, in JSON or between the opcodes of a pickle."""
        if head[:1] == b"\x80" and len(head) > 2 and 2 <= head[1] <= 5:
            return any(key in head for key in _PICKLE_KEYS)
        start = head.lstrip()
        return start.startswith(b"{") and _JSON_HEAD.search(start) is not None and _JSON_KEYS.search(start) is not None

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Rows of `collectives` and `collective_progress`."""
        if artefact.size_bytes > LARGEST_PICKLE_BYTES:
            detail = f"larger than {LARGEST_PICKLE_BYTES // 2**20} MiB and not read; lower TORCH_NCCL_TRACE_BUFFER_SIZE"
            yield Loss("too-large", artefact.path, None, detail)
            return
        dump = _Dump(artefact)
        data = b"".join(artefact.chunks())
        if data[:1] == b"\x80":
            dump.take_pickle(data)
        else:
            dump.take_json(data.decode("latin-1"))
        yield from dump.items()


READER = FlightRecorderReader()


class _Dump:
    """Top-level members of a dump, its entries with their places, and what was lost."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.losses = Losses(artefact.path)
        self.members: dict[str, Any] = {}
        self.places: dict[str, tuple[int, int]] = {}
        """(line, byte offset) of top-level members."""
        self.entries: list[tuple[int, int, Any]] = []
        """(line, byte offset, entry)."""

    def lose(self, kind: str, line: int | None, detail: str) -> None:
        """Counts one loss."""
        self.losses.add(kind, line, detail)

    def take_pickle(self, data: bytes) -> None:
        """A pickle; of a cut one, the entries that were whole."""
        plain = plain_data(data)
        offsets = {id(made): offset for offset, made in plain.dicts}
        if plain.problem is not None:
            self.lose(plain.problem, None, plain.detail)
            if plain.problem == "refused-opcode":
                return
            self.entries = [(1, offset, made) for offset, made in plain.dicts if "profiling_name" in made]
            return
        if not isinstance(plain.value, dict):
            self.lose("damaged-file", None, "the pickle is no dict; take the file as PyTorch wrote it")
            return
        self.members = {_text(key) or "": value for key, value in plain.value.items()}
        listed = self.members.pop("entries", [])
        if isinstance(listed, list | tuple):
            self.entries = [(1, offsets.get(id(entry), 0), entry) for entry in listed]

    def take_json(self, text: str) -> None:
        """JSON, one character a byte, member by member until the file ends."""
        line, counted = 1, 0

        def line_at(position: int) -> int:
            nonlocal line, counted
            line += text.count("\n", counted, position)
            counted = position
            return line

        position = text.find("{") + 1
        try:
            while True:
                position = _skip(text, position)
                if text[position : position + 1] == "}":
                    break
                start = position
                key, position = _DECODER.raw_decode(text, position)
                position = _skip(text, position)
                if not isinstance(key, str) or text[position : position + 1] != ":":
                    raise ValueError("a key and a colon are due")
                position = _skip(text, position + 1)
                self.places[key] = (line_at(start), start)
                if key == "entries" and text[position : position + 1] == "[":
                    position = _skip(text, position + 1)
                    while text[position : position + 1] != "]":
                        begin = position
                        entry, position = _DECODER.raw_decode(text, begin)
                        self.entries.append((line_at(begin), begin, entry))
                        position = _skip(text, position)
                    position += 1
                    continue
                self.members[key], position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            whole = text.rstrip().endswith("}")
            kind = "damaged-file" if whole else "truncated-file"
            what = (
                f"no JSON at byte {position}; what stands before it was read"
                if whole
                else "the file ends in the middle, as when the job was killed while it was written; the entries before that were read"
            )
            self.lose(kind, line_at(max(position, counted)), what)

    def items(self) -> Iterator[Item]:
        """Rows, then losses."""
        self._check_version()
        rank = self._rank()
        groups = self._groups()
        rows: list[dict[str, Any]] = []
        desc_of_id: dict[int, tuple[str, str | None]] = {}
        for line, offset, entry in self.entries:
            row = _collective(entry, groups) if isinstance(entry, dict) else None
            if row is None:
                detail = "an entry has neither a name nor a sequence number and was left out"
                self.lose("damaged-row", line, detail)
                continue
            if (pg_id := integer(entry.get("pg_id"))) is not None and row["process_group"] is not None:
                desc_of_id[pg_id] = (row["process_group"], row["group_desc"])
            where = {"artefact": self.artefact.sha256, "line": line, "byte_offset": offset, "rank": rank}
            rows.append(where | row)
            if len(rows) >= BATCH_ROWS:
                yield rows_of("collectives", rows)
                rows = []
        if rows:
            yield rows_of("collectives", rows)
        progress = list(self._progress(rank, groups, desc_of_id))
        if progress:
            yield rows_of("collective_progress", progress)
        yield from self.losses

    def _check_version(self) -> None:
        text = _text(self.members.get("version"))
        version = version_numbers(text)
        if text is None or version is None or version[0] == 2:
            return
        detail = f"version {text[:20]}; 2.0 to {_NEWEST[0]}.{_NEWEST[1]} are known, so fields may be missing here"
        self.lose("unknown-version", None, detail)

    def _rank(self) -> int | None:
        """The rank in the job: of the default group's sends and receives, else the number at the end of the file's name."""
        for _, _, entry in self.entries[:10_000]:
            if not isinstance(entry, dict):
                continue
            _, desc = _group_of(entry)
            name = _text(entry.get("profiling_name")) or ""
            pair = (_SENDER.search(name) or _RECEIVER.search(name)) if desc == "default_pg" else None
            if pair is not None:
                return small_integer(pair[1])
        # The file may lie elsewhere under another name, unpacked from an archive.
        name_end = _RANK_IN_NAME.search(re.split(r"[/\\!]", self.artefact.path)[-1])
        if name_end is None:
            return None
        rank = int(name_end[1])
        sizes = [len(group["members"]) for group in self._groups().values() if group["group_desc"] == "default_pg"]
        return rank if not sizes or rank < max(sizes) else None

    def _groups(self) -> dict[str, dict[str, Any]]:
        """Description and members by name of a group. gloo of 2.13.0 writes one without a name and without members."""
        config = self.members.get("pg_config")
        found: dict[str, dict[str, Any]] = {}
        for key, value in config.items() if isinstance(config, dict) else ():
            if not isinstance(value, dict):
                continue
            name = _text(value.get("name")) or _text(key)
            members = _members(value.get("ranks"))
            if name and members:
                found[name] = {"group_desc": _text(value.get("desc")), "members": members}
        return found

    def _progress(
        self,
        rank: int | None,
        groups: Mapping[str, Mapping[str, Any]],
        desc_of_id: Mapping[int, tuple[str, str | None]],
    ) -> Iterator[dict[str, Any]]:
        status = self.members.get("pg_status")
        line, offset = self.places.get("pg_status", (1, 0))
        for key, value in status.items() if isinstance(status, dict) else ():
            number = integer(key)
            if not isinstance(value, dict):
                continue
            name, desc = desc_of_id.get(number, (None, None)) if number is not None else (None, None)
            yield {
                "artefact": self.artefact.sha256,
                "line": line,
                "byte_offset": offset,
                "rank": rank,
                "source": _SOURCE,
                "process_group": name or _text(key) or (str(number) if number is not None else None),
                "group_desc": desc,
                "ranks": len(groups[name]["members"]) if name is not None and name in groups else None,
                "last_enqueued": _sequence(value.get("last_enqueued_collective")),
                "last_started": _sequence(value.get("last_started_collective")),
                "last_completed": _sequence(value.get("last_completed_collective")),
            }


def _skip(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position


def _group_of(entry: Mapping[Any, Any]) -> tuple[str | None, str | None]:
    group = entry.get("process_group")
    if isinstance(group, list | tuple):
        named = [_text(part) for part in group[:2]]
        return (named[0] if named else None), (named[1] if len(named) > 1 else None)
    return _text(group), None


def _collective(entry: Mapping[Any, Any], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """One entry in our words; None without a name or a number in its group."""
    profiling_name = _text(entry.get("profiling_name"))
    is_p2p = entry.get("is_p2p") is True
    collective_seq = entry.get("collective_seq_id", entry.get("seq_id"))
    seq = integer(entry.get("p2p_seq_id") if is_p2p else collective_seq)
    if not profiling_name or seq is None:
        return None
    group, desc = _group_of(entry)
    if group is None and (pg_id := integer(entry.get("pg_id"))) is not None:
        group = str(pg_id)
    config = groups.get(group or "")
    words = profiling_name.rsplit(":", 1)[-1].split(" ")
    pair = _SENDER.search(profiling_name) or _RECEIVER.search(profiling_name)
    input_numel = _elements(entry.get("input_sizes"))
    output_numel = _elements(entry.get("output_sizes"))
    dtype, element_bytes = _dtype(entry.get("input_dtypes"), entry.get("output_dtypes"))
    larger = max(input_numel or 0, output_numel or 0) if input_numel is not None or output_numel is not None else None
    size = larger * element_bytes if larger is not None and element_bytes is not None else None
    state = _text(entry.get("state"))
    return {
        "source": _SOURCE,
        "process_group": group,
        "group_desc": desc,
        "ranks": len(config["members"]) if config else None,
        "members": config["members"] if config else None,
        "seq": seq,
        "op": _OPS.get(words[0].replace("_", "").lower()),
        "profiling_name": profiling_name[:200],
        "is_p2p": is_p2p,
        "peer": small_integer(pair[2]) if pair else None,
        "size_bytes": size if size is not None and size < _LARGEST else None,
        "input_numel": input_numel,
        "output_numel": output_numel,
        "dtype": dtype,
        "state": state[:40] if state else None,
        "retired": entry.get("retired") if isinstance(entry.get("retired"), bool) else None,
        "created_ns": _moment(entry.get("time_created_ns")),
        "started_ns": _moment(entry.get("time_discovered_started_ns")),
        "completed_ns": _moment(entry.get("time_discovered_completed_ns")),
        "duration_ns": _milliseconds(entry.get("duration_ms")),
        "timeout_ns": _milliseconds(entry.get("timeout_ms")),
    }


def _elements(sizes: Any) -> int | None:
    """Elements of all tensors together; None if unknown, and for a collective without tensors."""
    if not isinstance(sizes, list | tuple) or not 0 < len(sizes) <= MAX_TENSORS:
        return None
    total = 0
    for shape in sizes:
        if not isinstance(shape, list | tuple) or len(shape) > MAX_DIMENSIONS:
            return None
        numbers = [integer(extent) for extent in shape]
        if any(number is None or number < 0 for number in numbers):
            return None
        total += math.prod(number or 0 for number in numbers)
        if total >= _LARGEST:
            return None
    return total


def _dtype(*lists: Any) -> tuple[str | None, int | None]:
    for listed in lists:
        if isinstance(listed, list | tuple) and listed and (name := _text(listed[0])):
            known = _DTYPES.get(name.lower())
            return known if known is not None else (name.lower()[:40], None)
    return None, None


def _members(ranks: Any) -> list[int] | None:
    """Ranks of a group, from "[0, 1]" or a list, sorted."""
    if isinstance(ranks, str):
        listed: Sequence[Any] = re.findall(r"\d{1,9}", ranks[: 12 * MAX_MEMBERS])
    elif isinstance(ranks, list | tuple):
        listed = ranks
    else:
        return None
    numbers = {number for rank in listed[:MAX_MEMBERS] if (number := small_integer(rank)) is not None and number >= 0}
    return sorted(numbers) or None


def _text(value: Any) -> str | None:
    """Text read a byte a character, with its UTF-8 put together; half of a pair of surrogates becomes a question mark."""
    if not isinstance(value, str):
        return None
    try:
        return value.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode("utf-8")


def _sequence(value: Any) -> int | None:
    """A sequence number; -1 says that there was none."""
    number = integer(value)
    return number if number is not None and number >= 0 else None


def _moment(value: Any) -> int | None:
    """Nanoseconds since 1970; JSON has 0 for unknown."""
    number = integer(value)
    return number if number is not None and number > 0 else None


def _milliseconds(value: Any) -> int | None:
    """Milliseconds as nanoseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return round(number * 1e6) if math.isfinite(number) and 0 <= number * 1e6 < _LARGEST else None
