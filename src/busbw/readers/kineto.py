"""Traces of PyTorch's profiler (Kineto's Chrome trace JSON), a file a rank: what its GPU did, step by step, and its collectives.

The file is scanned in C++ (busbw/scan/trace_scanner.hpp), so that a gigabyte takes seconds and little memory. Absolute time is baseTimeNanoseconds + ts.
A kernel belongs to the step (`ProfilerStep#N`) in which it was launched. Kernels of NCCL carry the arguments of `record_param_comms` themselves since
PyTorch 2.2; before, they are found by External id. gloo's collectives are annotations of a thread and have no number of their own.
Sources: pytorch/kineto (libkineto/src/output_json.cpp), traces of torch 1.13 to 2.13; torch/csrc/distributed/c10d/ParamCommsUtils.hpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from busbw.collectives import collective_named
from busbw.errors import Losses
from busbw.observations import SCHEMAS, Artefact, Rows, rows_of
from busbw.readers._trace import TraceScanner
from busbw.readers.base import Item
from busbw.readers.json_values import integer, small_integer

__all__ = ["READER", "SOURCE"]

SOURCE = "kineto"
MOST_SPANS = 8_000_000
"""Of one file: some 3 GB of trace. Further ones are counted."""
_BATCH_ROWS = 65_536
_HEAD_OF_TRACE = re.compile(
    rb'"traceEvents"\s*:\s*\[|"(?:deviceProperties|distributedInfo|baseTimeNanoseconds|displayTimeUnit)"\s*:'
)
_BARE_LIST = re.compile(rb'\[\s*\{[^{}]{0,2000}(?:\{[^{}]{0,4000}\}[^{}]{0,2000})?"ph"\s*:\s*"')
"""The array format of "Trace Event Format" (Chromium): what filters of traces write, such as jq .traceEvents; sorted, an event begins with its args."""
_OF_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|trace_id)"\s*:|"cat"\s*:\s*"(?:cpu_op|kernel|cuda_runtime|user_annotation|Trace)"'
)
_STEP = re.compile(r"ProfilerStep#(\d{1,12})$")
_KERNEL = re.compile(r"^n?r?ccl(?:Dev)?Kernel_?([A-Za-z]+?)(?:_|\(|$)")
_GLOO = re.compile(r"^gloo:(\w+)$")
_CATEGORY = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "user_annotation": "annotation"}
_MOST_MEMBERS = 65_536
_UNKNOWN = np.iinfo(np.int64).min
_BYTES = {
    "float": ("float", 4), "float32": ("float", 4), "double": ("double", 8), "float64": ("double", 8), "half": ("half", 2), "float16": ("half", 2),
    "bfloat16": ("bfloat16", 2), "byte": ("uint8", 1), "uint8": ("uint8", 1), "char": ("int8", 1), "int8": ("int8", 1), "bool": ("uint8", 1),
    "short": ("int16", 2), "int16": ("int16", 2), "int": ("int32", 4), "int32": ("int32", 4), "long": ("int64", 8), "int64": ("int64", 8),
    "float8_e4m3fn": ("f8e4m3", 1), "float8_e5m2": ("f8e5m2", 1),
}  # fmt: skip
"""PyTorch's names of types, in lower case: ours, and bytes of an element."""

Ints = npt.NDArray[np.int64]


class KinetoReader:
    """Traces of PyTorch's profiler."""

    name = "kineto"

    def sniff(self, head: bytes) -> bool:
        """A Chrome trace by its members, or a bare list of its events; and Kineto's by words that only it writes."""
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        return (
            start.startswith(b"{") and _HEAD_OF_TRACE.search(start) is not None and _OF_KINETO.search(start) is not None
        ) or (_BARE_LIST.match(start) is not None and _OF_KINETO.search(start) is not None)

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Rows of `spans` and `collectives`."""
        scanner = TraceScanner(MOST_SPANS)
        for chunk in artefact.chunks():
            scanner.feed(chunk)
        scanner.finish()
        yield from _Trace(artefact, scanner).items()


READER = KinetoReader()


class _Trace:
    """A scanned trace, its words in our terms."""

    def __init__(self, artefact: Artefact, scanner: TraceScanner) -> None:
        self.artefact = artefact
        self.losses = Losses(artefact.path)
        self.scanner = scanner
        self.words = [_word(text) for text in scanner.words()]
        self.members = {key.decode("utf-8", "replace"): value for key, value in scanner.members()}
        self.columns: dict[str, npt.NDArray[Any]] = scanner.take()
        self.about = self._object("distributedInfo")
        self.rank = small_integer(self.about.get("rank"))
        self.ranks = small_integer(self.about.get("world_size"))
        base = integer(self._value("baseTimeNanoseconds"))
        self.base_ns = base if base is not None and 0 <= base < 1 << 61 else 0
        host = self._value("host_name")
        self.host = host[:200] if isinstance(host, str) and host else None
        self.groups = dict(self._groups())
        self.begin: Ints = self.columns["begin_ns"] + self.base_ns
        self.end: Ints = self.columns["end_ns"] + self.base_ns
        self.launched = self._launched()
        self.step = self._steps()

    def _of(self, *categories: str) -> npt.NDArray[np.bool_]:
        """(spans,): which are of these categories of Kineto."""
        return np.isin(self.columns["category"], [code for code, word in enumerate(self.words) if word in categories])

    def items(self) -> Iterator[Item]:
        """Rows, then losses."""
        self._damage()
        shown = np.flatnonzero(self._of(*_CATEGORY))
        for first in range(0, shown.size, _BATCH_ROWS):
            yield self._spans(shown[first : first + _BATCH_ROWS])
        yield from self._collectives()
        yield from self.losses

    def _damage(self) -> None:
        scanner = self.scanner
        if scanner.problem:
            self.losses.add(
                "damaged-file", None, f"{scanner.problem}, at byte {scanner.problem_at}; the events before it were read"
            )
        elif not scanner.ended:
            self.losses.add(
                "truncated-file",
                None,
                "the file ends in the middle, as when the job was killed while it was written; the events before that were read",
            )
        if scanner.without_time:
            self.losses.add(
                "damaged-event", None, "events have no time and were left out", count=int(scanner.without_time)
            )
        if scanner.left_out:
            self.losses.add(
                "too-large",
                None,
                f"{scanner.left_out} spans beyond the first {MOST_SPANS} were left out; profile fewer steps",
            )

    def _value(self, key: str) -> Any:
        text = self.members.get(key)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.losses.add("damaged-member", None, f"{key} is no JSON; what it says is not known")
            return None

    def _object(self, key: str) -> Mapping[str, Any]:
        value = self._value(key)
        return value if isinstance(value, dict) else {}

    def _groups(self) -> Iterator[tuple[str, tuple[str | None, list[int]]]]:
        """Description and members of process groups by name."""
        listed = self.about.get("pg_config")
        for group in listed if isinstance(listed, list) else ():
            if isinstance(group, dict) and isinstance(ranks := group.get("ranks"), list):
                members = [
                    rank for each in ranks[:_MOST_MEMBERS] if (rank := small_integer(each)) is not None and rank >= 0
                ]
                desc = group.get("pg_desc")
                yield str(group.get("pg_name")), (desc[:200] if isinstance(desc, str) else None, members)

    def _launched(self) -> Ints:
        """(spans,) int64: when the host called for each; _UNKNOWN where no call has its correlation. A kernel never begins before it."""
        correlation = self.columns["correlation"]
        runtime = self._of("cuda_runtime", "cuda_driver")
        calls = np.flatnonzero(runtime & (correlation > 0))
        calls = calls[np.argsort(correlation[calls], kind="stable")]
        found = np.full(correlation.shape, _UNKNOWN, np.int64)
        if calls.size:
            at = np.minimum(np.searchsorted(correlation[calls], correlation), calls.size - 1)
            matches = (correlation[calls][at] == correlation) & (correlation > 0) & ~runtime
            found[matches] = self.begin[calls[at[matches]]]
        return found

    def _steps(self) -> Ints:
        """(spans,) int64: the step in which each was launched, or, where that is not known, began; -1: none."""
        numbers = {code: int(found[1]) for code, word in enumerate(self.words) if (found := _STEP.search(word))}
        marks = np.flatnonzero(self._of("user_annotation") & np.isin(self.columns["name"], list(numbers)))
        step = np.full(self.begin.shape, -1, np.int64)
        if not marks.size:
            return step
        marks = marks[np.argsort(self.begin[marks], kind="stable")]
        of_mark = np.array([numbers[int(name)] for name in self.columns["name"][marks]], np.int64)
        moment = np.where(self.launched != _UNKNOWN, self.launched, self.begin)
        at = np.searchsorted(self.begin[marks], moment, side="right") - 1
        inside = (at >= 0) & (moment <= self.end[marks][np.maximum(at, 0)])
        step[inside] = of_mark[at[inside]]
        return step

    def _spans(self, rows: Ints) -> Rows:
        columns, count = self.columns, rows.size
        once = pa.array(np.zeros(count, np.int32))
        category = columns["category"][rows]
        kept, places = np.unique(category, return_inverse=True)
        made: dict[str, pa.Array] = {
            "artefact": pa.array([self.artefact.sha256]).take(once),
            "line": columns["line"][rows],
            "byte_offset": columns["byte_offset"][rows],
            "host": pa.array([self.host], pa.string()).take(once),
            "device": pa.array(columns["device"][rows], mask=columns["device"][rows] < 0),
            "rank": pa.array([self.rank], pa.int32()).take(once),
            "source": pa.array([SOURCE]).take(once),
            "category": pa.array([_CATEGORY[self.words[code]] for code in kept], pa.string()).take(pa.array(places)),
            "lane": self._spelled(columns["lane"][rows]),
            "name": self._spelled(columns["name"][rows]),
            "begin_ns": self.begin[rows],
            "end_ns": self.end[rows],
            "launched_ns": pa.array(self.launched[rows], mask=self.launched[rows] == _UNKNOWN),
            "step": pa.array(self.step[rows], mask=self.step[rows] < 0),
        }
        schema = SCHEMAS["spans"]
        arrays = [
            pa.array(made[field.name]).cast(field.type) if field.name in made else pa.nulls(count, field.type)
            for field in schema
        ]
        return Rows("spans", pa.record_batch(arrays, schema=schema))

    def _spelled(self, codes: npt.NDArray[np.int32]) -> pa.Array:
        kept, places = np.unique(codes, return_inverse=True)
        return pa.array([self.words[code] for code in kept], pa.string()).take(pa.array(places))

    def _collectives(self) -> Iterator[Rows]:
        columns, texts = self.columns, self.scanner.args()
        with_args = columns["args"] >= 0
        kernels = self._of("kernel")
        calls = np.flatnonzero(with_args & self._of("cpu_op") & (columns["external"] >= 0))
        described = dict(zip(columns["external"][calls].tolist(), columns["args"][calls].tolist(), strict=True))
        rows: list[dict[str, Any]] = []
        for at in np.flatnonzero(with_args & self._of(*_CATEGORY)).tolist():
            args = _json_object(texts[columns["args"][at]])
            name, device, launched = self.words[columns["name"][at]], int(columns["device"][at]), int(self.launched[at])
            if (
                kernels[at]
                and "Collective name" not in args
                and (call := described.get(int(columns["external"][at]))) is not None
            ):
                args = _json_object(texts[call])
            row = self._collective(name, args)
            if row is None:
                continue
            started, ended = int(self.begin[at]), int(self.end[at])
            rows.append(row | {
                "artefact": self.artefact.sha256, "line": int(columns["line"][at]), "byte_offset": int(columns["byte_offset"][at]),
                "rank": self.rank, "host": self.host, "source": SOURCE, "profiling_name": name[:200], "state": "completed", "retired": True,
                "device": device if device >= 0 else None, "created_ns": launched if launched != _UNKNOWN else None,
                "started_ns": started, "completed_ns": ended, "duration_ns": ended - started,
            })  # fmt: skip
            if len(rows) >= _BATCH_ROWS:
                yield rows_of("collectives", rows)
                rows = []
        if rows:
            yield rows_of("collectives", rows)

    def _collective(self, name: str, args: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a kernel of NCCL or an annotation of gloo does; None for what is neither."""
        gloo, kernel = _GLOO.match(name), _KERNEL.match(name)
        if gloo is not None:
            dims, types = args.get("Input Dims"), args.get("Input type")
            return {
                "op": _kind(gloo[1]),
                "ranks": self.ranks,
                "is_p2p": gloo[1] in ("send", "recv"),
                **_first_tensor(dims, types),
            }
        if kernel is None:
            return None
        said = args.get("Collective name")
        op = _kind(said) if isinstance(said, str) else _kind(kernel[1])
        dtype, item = _BYTES.get(str(args.get("dtype")).lower().removeprefix("c10::"), (None, None))
        sent, received = integer(args.get("In msg nelems")), integer(args.get("Out msg nelems"))
        larger = max(sent or 0, received or 0) if sent is not None or received is not None else None
        group = str(args["Process Group Name"])[:200] if "Process Group Name" in args else None
        desc, members = self.groups.get(group or "", (None, []))
        listed = args.get("Process Group Ranks")
        if not members and isinstance(listed, str) and "..." not in listed:
            members = [int(rank) for rank in re.findall(r"\d{1,8}", listed)[:_MOST_MEMBERS]]
        is_p2p = op in ("send", "recv", "send_recv") or (
            isinstance(said, str) and said.lstrip("_").lower() in ("send", "recv", "coalesced")
        )
        source, target = small_integer(args.get("Src Rank")), small_integer(args.get("Dst Rank"))
        size = larger * item if larger is not None and item is not None and 0 <= larger < 1 << 55 else None
        return {
            "process_group": group, "group_desc": desc or _brief(args.get("Process Group Description")),
            "ranks": small_integer(args.get("Group size")) or (len(members) or None), "members": members or None,
            "seq": integer(args.get("Seq")), "op": op, "is_p2p": is_p2p, "dtype": dtype, "size_bytes": size, "input_numel": sent, "output_numel": received,
            "peer": next((rank for rank in (target, source) if is_p2p and rank is not None and rank >= 0 and rank != self.rank), None),
        }  # fmt: skip


def _word(text: bytes) -> str:
    """What JSON has between quotes; as it stands where it is none (a name cut at its end, bytes that are no UTF-8)."""
    plain = text.decode("utf-8", "replace")
    if "\\" not in plain:
        return plain
    try:
        spelled = json.loads(f'"{plain}"', strict=False)
    except ValueError:
        return plain
    return spelled.encode("utf-8", "replace").decode("utf-8") if isinstance(spelled, str) else plain


def _json_object(text: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _kind(said: str) -> str | None:
    """Our name of a collective: _allgather_base, all_gather_into_tensor_coalesced, AllGather."""
    plain = said.lstrip("_").lower()
    for end in ("_coalesced", "_base", "_into_tensor", "_tensor", "coalesced", "base"):
        plain = plain.removesuffix(end)
    return (
        "send_recv"
        if plain in ("sendrecv", "send_recv")
        else plain
        if plain in ("send", "recv")
        else collective_named(plain)
    )


def _brief(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None


def _first_tensor(dims: Any, types: Any) -> dict[str, Any]:
    """Elements, type and bytes of the first tensor of an annotation."""
    if not isinstance(dims, list) or not dims or not isinstance(dims[0], list):
        return {}
    count = 1
    for extent in dims[0][:64]:
        number = integer(extent)
        if number is None or number < 0 or count * number >= 1 << 55:
            return {}
        count *= number
    dtype, item = (
        _BYTES.get(str(types[0]).lower().removeprefix("c10::"), (None, 0))
        if isinstance(types, list) and types
        else (None, 0)
    )
    return {"input_numel": count, "dtype": dtype, "size_bytes": count * item if item else None}
