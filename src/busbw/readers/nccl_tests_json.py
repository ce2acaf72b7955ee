"""The JSON files of nccl-tests (`-J FILE`, formats 1 to 3) and of rccl-tests (`-x FILE -Z json`, one object a line, in a list since July 2025).

Full precision, unlike the printed tables. nccl-tests writes by hand, so a file may hold bare `inf`, numbers and
booleans as strings, halves that are null, and stop in the middle; all that stands before the end is read. Its whole
environment is in there too: only variables of the allow-list are kept. Sources: NVIDIA/nccl-tests src/util.cu
(2.19.6), ROCm/rccl-tests pull requests 93 and 140.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from busbw.errors import Loss, Losses
from busbw.observations import Artefact, is_allowed_variable, rows_of
from busbw.readers.base import Item
from busbw.units import GB

__all__ = ["LARGEST_FILE_BYTES", "READER"]

LARGEST_FILE_BYTES = 256 * 2**20
"""A file is read as a whole; a sweep of 30 sizes with 1000 times each is 2 MB."""

_HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"\s*:\s*"[^"]*"\s*,\s*"args"\s*:\s*\[')
_BARE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|-?\b(?:inf|nan)\b', re.DOTALL)
_HAS_BARE = re.compile(rb"[:,\[]\s*-?(?:inf|nan)\b")
_BLANKS = re.compile(r"[ \t\r\n,]*")
_PROGRAM = re.compile(r"([a-z_]+?)_perf(?:_mpi)?(?:\.exe)?$")
_COLLECTIVE_OF_PROGRAM = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "alltoallv": "all_to_all_v", "broadcast": "broadcast", "reduce": "reduce",
    "gather": "gather", "scatter": "scatter", "sendrecv": "send_recv",
}  # fmt: skip
_COLLECTIVE_OF_RCCL_NAME = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "sendrecv": "send_recv",
}  # fmt: skip
_DECODER = json.JSONDecoder(strict=False)
_LARGEST = 2**62


class NcclTestsJsonReader:
    """JSON written by nccl-tests and rccl-tests."""

    name = "nccl-tests-json"

    def sniff(self, head: bytes) -> bool:
        """By the first keys of a -J file, or the first line of a -Z json file."""
        first = head.lstrip().removeprefix(b"[").lstrip()[:4096].partition(b"\n")[0]
        is_line = first.startswith(b"{") and b'"algBw"' in first and b'"busBw"' in first
        return is_line or _HEAD.match(head) is not None

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Measurements, GPUs, allowed variables, and the verdict of the test as events."""
        if artefact.size_bytes > LARGEST_FILE_BYTES:
            limit = LARGEST_FILE_BYTES // 2**20
            detail = f"larger than {limit} MiB and not read. Split the sweep over files (-b, -e), or leave -I away"
            yield Loss("too-large", artefact.path, None, detail)
            return
        document = _Document(artefact)
        if _HEAD.match(document.raw[: 64 * 1024]):
            yield from _report(document)
        else:
            yield from _objects(document)
        yield from document.losses


READER = NcclTestsJsonReader()


class _Document:
    """The bytes as text, one character a byte, so that positions are byte offsets; and where lines begin."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self.raw = b"".join(artefact.chunks())
        data = self.raw
        if _HAS_BARE.search(data):
            data = _BARE.sub(_as_json_number, data)
        self.text = data.decode("latin-1")
        self.losses = Losses(artefact.path)
        self._line = 1
        self._counted_to = 0

    def line_at(self, position: int) -> int:
        """Line of a position; positions must not go back."""
        if position > self._counted_to:
            self._line += self.text.count("\n", self._counted_to, position)
            self._counted_to = position
        return self._line

    def where(self, position: int) -> dict[str, Any]:
        """The columns that say where a row comes from."""
        return {"artefact": self.artefact.sha256, "line": self.line_at(position), "byte_offset": position}

    def skip_blanks(self, position: int) -> int:
        """Past blanks and commas."""
        found = _BLANKS.match(self.text, position)
        return found.end() if found else position

    def value_at(self, position: int) -> tuple[Any, int]:
        """The value there and where it ends. Raises ValueError if it is none, or is cut."""
        try:
            return _DECODER.raw_decode(self.text, position)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def lose(self, kind: str, line: int | None, detail: str) -> None:
        """Counts one loss."""
        self.losses.add(kind, line, detail)


def _as_json_number(match: re.Match[bytes]) -> bytes:
    """Bare inf and nan as the NaN that json knows, in as many bytes; strings stay."""
    token = match[0]
    return token if token.startswith(b'"') else b"NaN".rjust(len(token))


def _report(document: _Document) -> Iterator[Item]:
    """A -J file: the members of its one object, in their order, until the file ends."""
    facts: dict[str, Any] = {}
    results: list[tuple[int, int, Any]] = []
    env: list[tuple[int, int, Any]] = []
    verdicts: list[dict[str, Any]] = []
    devices_at = None
    position = document.text.index("{") + 1
    try:
        while True:
            position = document.skip_blanks(position)
            if document.text[position : position + 1] == "}":
                break
            start = position
            key, position = document.value_at(position)
            position = document.skip_blanks(position)
            if not isinstance(key, str) or document.text[position : position + 1] != ":":
                raise ValueError("a key and a colon are due")
            position = document.skip_blanks(position + 1)
            if key in ("results", "env") and document.text[position : position + 1] == "[":
                elements = results if key == "results" else env
                position = document.skip_blanks(position + 1)
                while document.text[position : position + 1] != "]":
                    begin, line = position, document.line_at(position)
                    value, position = document.value_at(begin)
                    elements.append((begin, line, value))
                    position = document.skip_blanks(position)
                position += 1
                continue
            if key == "config":
                devices_at = document.where(start)
            place = document.where(start)
            facts[key], position = document.value_at(position)
            if key in ("out_of_bounds", "average_bus_bandwidth", "errors"):
                verdicts.extend(_verdicts(key, facts[key], place))
    except ValueError:
        _note_end(document, position)
    config, arguments = facts.get("config"), facts.get("args")
    config = config if isinstance(config, dict) else {}
    arguments = arguments if isinstance(arguments, list) else []
    settings = [row for begin, line, entry in env if (row := _setting(document, begin, line, entry)) is not None]
    if settings:
        yield rows_of("settings", settings)
    devices = _devices(config)
    if devices and devices_at is not None:
        yield rows_of("devices", [devices_at | device for device in devices])
    measurements = list(_measurements(document, results, arguments, config, devices))
    if measurements:
        yield rows_of("measurements", measurements)
    if verdicts:
        yield rows_of("events", verdicts)


def _note_end(document: _Document, position: int) -> None:
    rest = document.text.rstrip()
    line = document.text.count("\n", 0, min(position, len(document.text))) + 1
    if rest.endswith("}") and position < len(rest):
        detail = f"no JSON at byte {position}; what stands before it was read. Take the file as nccl-tests wrote it"
        document.lose("damaged-file", line, detail)
    else:
        detail = (
            "the file ends in the middle, as when the test was killed; the results before that were read. Run it again"
        )
        document.lose("truncated-file", line, detail)


def _setting(document: _Document, begin: int, line: int, entry: Any) -> dict[str, Any] | None:
    if not isinstance(entry, str):
        return None
    name, equals, value = entry.partition("=")
    if not equals or not is_allowed_variable(name):
        return None
    return {
        "artefact": document.artefact.sha256,
        "line": line,
        "byte_offset": begin,
        "name": name,
        "value": _unicode(value),
        "origin": "benchmark report",
    }


def _verdicts(key: str, value: Any, place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if key == "errors" and isinstance(value, list):
        for error in value:
            if isinstance(error, str) and error.strip():
                text = _unicode(error)
                yield dict(place) | {
                    "event": "nccl_tests.failure",
                    "level": "error",
                    "text": f"# error: {text}",
                    "fields": [("message", text)],
                }
    elif key == "out_of_bounds" and isinstance(value, dict):
        count, okay = _integer(value.get("count")), _truth(value.get("okay"))
        if count is not None:
            status = "OK" if (okay if okay is not None else count == 0) else "FAILED"
            yield dict(place) | {
                "event": "nccl_tests.out_of_bounds",
                "level": "info",
                "text": f"Out of bounds values : {count} {status}",
                "fields": [("count", str(count)), ("status", status)],
            }
    elif key == "average_bus_bandwidth" and isinstance(value, dict):
        figure, okay = _number(value.get("bandwidth")), _truth(value.get("okay"))
        if figure is not None:
            fields = [("value", f"{figure:g}")]
            if okay is not None:
                fields.append(("status", "OK" if okay else "FAILED"))
            yield dict(place) | {
                "event": "nccl_tests.average",
                "level": "info",
                "text": "Avg bus bandwidth : " + " ".join(value for _, value in fields),
                "fields": fields,
            }


def _devices(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each process's first GPU (all that the file lists), each once."""
    listed = config.get("devices")
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if not isinstance(entry, dict):
            continue
        group = _integer(entry.get("group"))
        row = {
            "host": _word(entry.get("hostname")),
            "pid": _integer(entry.get("pid")),
            "device": _small(entry.get("device")),
            "rank": _small(entry.get("rank")),
            "kind": "gpu",
            "bus_id": _word(entry.get("device_hex")),
            "name": _word(entry.get("device_info")),
            "attributes": [] if group is None else [("group", str(group))],
        }
        rows.setdefault((row["host"], row["pid"], row["device"], row["rank"], group), row)
    return list(rows.values())


def _group_size(config: Mapping[str, Any], devices: list[dict[str, Any]]) -> tuple[int | None, int | None]:
    """Ranks and nodes of a communicator: processes of one group times the GPUs of a process."""
    threads, gpus = _integer(config.get("nthreads")), _integer(config.get("ngpus"))
    if not devices or threads is None or gpus is None or threads < 1 or gpus < 1:
        return None, None
    sizes = Counter(str(device["attributes"]) for device in devices)
    if len(set(sizes.values())) != 1:
        return None, None
    first = str(devices[0]["attributes"])
    hosts = {device["host"] for device in devices if str(device["attributes"]) == first}
    ranks = sizes[first] * threads * gpus
    return (ranks if ranks < 2**31 else None), (len(hosts) if None not in hosts else None)


def _measurements(
    document: _Document,
    results: list[tuple[int, int, Any]],
    arguments: list[Any],
    config: Mapping[str, Any],
    devices: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    program = arguments[0] if arguments and isinstance(arguments[0], str) else ""
    name = _PROGRAM.search(program.rsplit("/", 1)[-1].rsplit("\\", 1)[-1])
    rccl = "rccl" in program or any("AMD" in (device["name"] or "") for device in devices)
    ranks, nodes = _group_size(config, devices)
    seen: set[str] = set()
    for position, line, result in results:
        size = _integer(result.get("size")) if isinstance(result, dict) else None
        if size is None:
            document.lose("damaged-row", line, "a result is no object with a size; it was left out")
            continue
        identity = json.dumps(result, sort_keys=True)
        if identity in seen:
            document.lose("duplicate-row", line, "the same result, digit for digit, stands twice; one was kept")
            continue
        seen.add(identity)
        root, redop = _small(result.get("root")), _word(result.get("redop"))
        whole = {
            "artefact": document.artefact.sha256,
            "line": line,
            "byte_offset": position,
            "tool": "rccl-tests" if rccl else "nccl-tests",
            "table_index": 0,
            "collective": _COLLECTIVE_OF_PROGRAM.get(name[1]) if name else None,
            "size_bytes": size,
            "count": _integer(result.get("count")),
            "dtype": _word(result.get("type")),
            "redop": None if redop in ("none", "") else redop,
            "root": root if root is not None and root >= 0 else None,
            "ranks": ranks,
            "nodes": nodes,
            "iterations": _integer(result.get("actual_iterations")),
        }
        for key, in_place in (("out_of_place", False), ("in_place", True)):
            half = result.get(key)
            if not isinstance(half, dict):
                continue
            iterations = result.get(f"{key}_per_iter")
            each = iterations if isinstance(iterations, dict) else {}
            yield whole | {
                "in_place": in_place,
                "time_ns": _nanoseconds(half.get("time", half.get("cpu_time"))),
                "time_is_cpu": "time" not in half and "cpu_time" in half,
                "algbw_bytes_per_s": _rate(document, line, half.get("alg_bw")),
                "busbw_bytes_per_s": _rate(document, line, half.get("bus_bw")),
                "wrong": _number(half.get("nwrong")),
                "min_ns": _nanoseconds(each.get("min_us")),
                "max_ns": _nanoseconds(each.get("max_us")),
                "p99_ns": _nanoseconds(each.get("p99_us")),
                "cv_pct": _number(each.get("cv_pct")),
            }


def _objects(document: _Document) -> Iterator[Item]:
    """A -Z json file of rccl-tests: one object a line and half."""
    rows = []
    seen: set[str] = set()
    position = 0
    for text in document.text.split("\n"):
        begin, position = position, position + len(text) + 1
        line = document.line_at(begin)
        if text.strip() in ("", "[", "]"):
            continue
        try:
            result, end = document.value_at(begin + len(text) - len(text.lstrip(" \t\r[")))
        except ValueError:
            cut = position > len(document.text.rstrip())
            document.lose(
                "truncated-file" if cut else "damaged-row",
                line,
                "the last line is cut, as when the test was killed; run it again"
                if cut
                else "a line is no JSON object; it was left out",
            )
            continue
        size = _integer(result.get("size")) if isinstance(result, dict) else None
        if size is None or end > position:
            document.lose("damaged-row", line, "a line is no result with a size; it was left out")
            continue
        identity = json.dumps(result, sort_keys=True)
        if identity in seen:
            document.lose("duplicate-row", line, "the same result, digit for digit, stands twice; one was kept")
            continue
        seen.add(identity)
        ranks, per_rank = _integer(result.get("ranks")), _integer(result.get("gpusPerRank"))
        members = ranks * (per_rank or 1) if ranks else _integer(result.get("gpus"))
        redop, name = _word(result.get("redop")), _word(result.get("name")) or ""
        rows.append(
            {
                "artefact": document.artefact.sha256,
                "line": line,
                "byte_offset": begin,
                "tool": "rccl-tests",
                "table_index": 0,
                "collective": _COLLECTIVE_OF_RCCL_NAME.get(name.replace("_", "").lower()),
                "size_bytes": size,
                "dtype": _word(result.get("type")),
                "redop": None if redop in ("none", "") else redop,
                "ranks": _small(members) or None,
                "nodes": _small(result.get("nodes")) or None,
                "in_place": _truth(result.get("inPlace")),
                "time_ns": _nanoseconds(result.get("time")),
                "algbw_bytes_per_s": _rate(document, line, result.get("algBw")),
                "busbw_bytes_per_s": _rate(document, line, result.get("busBw")),
                "wrong": _number(result.get("#wrong", result.get("wrong"))),
            }
        )
    if rows:
        yield rows_of("measurements", rows)


def _unicode(text: str) -> str:
    """Text read a byte a character, with its UTF-8 put together; escapes of other characters stay what they are."""
    try:
        return text.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")


def _word(value: Any) -> str | None:
    return _unicode(value).strip() if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    """A finite number, also one written as a string."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_LARGEST < value < _LARGEST else None
    number = _number(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < _LARGEST else None


def _small(value: Any) -> int | None:
    number = _integer(value)
    return number if number is not None and -(2**31) < number < 2**31 else None


def _truth(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}.get(value.strip().lower())
    return bool(value) if isinstance(value, bool | int) else None


def _nanoseconds(value_us: Any) -> int | None:
    number = _number(value_us)
    return round(number * 1e3) if number is not None and 0 <= number * 1e3 < _LARGEST else None


def _rate(document: _Document, line: int, value: Any) -> float | None:
    number = _number(value)
    if number is None and value is not None:
        detail = "a rate is inf or nan, as when the time was 0; it is kept as unknown. Raise the iterations (-n)"
        document.lose("not-finite", line, detail)
    return None if number is None else number * GB
