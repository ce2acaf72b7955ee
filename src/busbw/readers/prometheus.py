"""What a Prometheus exporter serves: text format 0.0.4 and OpenMetrics (DCGM exporter, node_exporter, and any other).

    # HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
    # TYPE DCGM_FI_DEV_SM_CLOCK gauge
    DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1",device="nvidia0",Hostname="host0"} 1980
    node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"} 2.2e+10 1796022754765

Grammar: prometheus/docs, exposition_formats.md; OpenMetrics 1.0. A time of day is in milliseconds in the first and in seconds in the
second; what is below 1e11 is taken for seconds (1e11 ms is in 1973). A scrape has up to some 100 MB, so a file that is nothing but one is
read apart from the scan of other texts; samples inside another text are read too. The same label sets come again and again: each is read once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from busbw.errors import Losses
from busbw.observations import SCHEMAS, Artefact, Rows
from busbw.readers.base import Item, Lines, PlainLine
from busbw.readers.plain_rows import by_writer

__all__ = ["LINE_READER", "READER"]

_NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_SAMPLE = re.compile(
    rb"\s*(" + _NAME + rb')(?:\{([^"}]*+(?:"(?:[^"\\]|\\.)*+"[^"}]*+)*+)\})?[ \t]+'
    rb"([-+]?(?:[0-9.]+(?:[eE][-+]?[0-9]+)?|[Nn]a[Nn]|[Ii]nf(?:inity)?))(?:[ \t]+(-?[0-9]+(?:\.[0-9]+)?))?[ \t]*(?:# \{.*)?"
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*+)\s*=\s*"((?:[^"\\]|\\.)*+)"\s*(?:,|$)')
_COMMENT = re.compile(rb"#(?: (?:HELP|TYPE|UNIT) " + _NAME + rb"(?: .*)?| EOF\s*| .*)?")
_TOLD = re.compile(rb"# (?:HELP|TYPE|UNIT) (" + _NAME + rb")(?: |$)")
_SIGNATURE = re.compile(r'^# (?:HELP|TYPE) [a-zA-Z_:]\w*(?: |$)|^[a-zA-Z_:][\w:]*\{[a-zA-Z_]\w*="')
_HOST_LABELS = ("Hostname", "hostname", "nodename", "node", "host", "instance")
"""Labels that name the host, best first: DCGM exporter, common relabelling, Prometheus's own (host:port)."""
_ESCAPE = re.compile(r"\\(.)")
_BATCH_ROWS = 1 << 16
_LONGEST_LINE = 1 << 16
_SNIFFED_LINES = 20
_LARGEST_PORT = 2**31 - 1


class _Samples:
    """Samples of one artefact as columns, handed out in batches; label sets of a batch are kept once."""

    def __init__(self, artefact: Artefact) -> None:
        self._artefact = artefact
        self._clear()

    def _clear(self) -> None:
        self._sets: dict[bytes, int] = {}
        self._labels: list[list[tuple[str, str]]] = []
        self._places: list[tuple[str | None, str | None, int | None]] = []
        self._code: list[int] = []
        self._name: list[str] = []
        self._value: list[float | None] = []
        self._time: list[int | None] = []
        self._line: list[int] = []
        self._offset: list[int] = []

    def add(self, found: re.Match[bytes], line: int, offset: int, host: str | None = None) -> bool:
        """One sample; False if its labels or its value cannot be read."""
        name, labels, value, stamp = found.groups()
        try:
            number = float(value)
        except ValueError:
            return False
        code = self._code_of(labels or b"", host)
        if code < 0:
            return False
        self._code.append(code)
        self._name.append(name.decode())
        self._value.append(None if math.isnan(number) else number)
        self._time.append(_time_ns(stamp) if stamp is not None else None)
        self._line.append(line)
        self._offset.append(offset)
        return True

    def full(self) -> bool:
        """Whether a batch is due."""
        return len(self._code) >= _BATCH_ROWS

    def take(self) -> Iterator[Rows]:
        """The rows since the last call."""
        if not self._code:
            return
        codes = pa.array(np.array(self._code, dtype=np.int32))
        hosts, devices, ports = zip(*self._places, strict=True)
        schema = SCHEMAS["counters"]
        columns = {
            "artefact": pa.repeat(self._artefact.sha256, len(codes)),
            "line": pa.array(self._line, pa.int64()),
            "byte_offset": pa.array(self._offset, pa.int64()),
            "host": pa.array(hosts, pa.string()).take(codes),
            "device": pa.array(devices, pa.string()).take(codes),
            "port": pa.array(ports, pa.int32()).take(codes),
            "name": pa.array(self._name, pa.string()),
            "value": pa.array(self._value, pa.float64()),
            "time_ns": pa.array(self._time, pa.int64()),
            "labels": pa.array(self._labels, schema.field("labels").type).take(codes),
        }
        yield Rows("counters", pa.RecordBatch.from_arrays([columns[f.name] for f in schema], schema=schema))
        self._clear()

    def _code_of(self, text: bytes, host: str | None) -> int:
        """The number of this label set in the batch; -1 if it is damaged."""
        key = text if host is None else text + b"\0" + host.encode()
        code = self._sets.get(key)
        if code is None:
            labels = _labels(text.decode("utf-8", "replace"))
            if labels is None:
                return -1
            code = len(self._labels)
            self._sets[key] = code
            self._places.append(_place(labels, host))
            self._labels.append(list(labels.items()))
        return code


class PrometheusReader:
    """Reads a file that is one scrape."""

    name = "prometheus"

    def sniff(self, head: bytes) -> bool:
        """Whether the first lines are comments and samples, and there is a sample or a HELP or TYPE among them."""
        lines = [line for line in head.split(b"\n")[:-1] if line.strip()][:_SNIFFED_LINES]
        if not lines and b"\n" not in head:
            lines = [head]
        told = [_TOLD.match(line) is not None or (b"{" in line and _is_sample(line)) for line in lines]
        return any(told[:2]) and all(_COMMENT.fullmatch(line.rstrip()) or _is_sample(line) for line in lines)

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """Rows of `counters`. What is neither sample nor comment is a loss."""
        samples, losses = _Samples(artefact), Losses(artefact.path)
        rest = b""
        number = offset = 0
        cut = False
        for chunk in artefact.chunks():
            pieces = (rest + chunk).split(b"\n")
            rest = pieces.pop()
            for piece in pieces:
                number += 1
                if not cut:
                    _take(samples, losses, piece, number, offset)
                cut = False
                offset += len(piece) + 1
                if samples.full():
                    yield from samples.take()
            if len(rest) > _LONGEST_LINE:  # no line of a scrape is that long
                if not cut:
                    losses.add("long-line", number + 1, "a line longer than 64 KiB was left out")
                cut = True
                offset += len(rest)
                rest = b""
        if rest and not cut:
            _take(samples, losses, rest, number + 1, offset)
        yield from samples.take()
        yield from losses


class PrometheusLineReader(Lines):
    """Reads samples that stand in another text."""

    name = "prometheus-blocks"
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Rows of `counters`. A sample without labels is taken only where HELP or TYPE announced its name."""
        losses = Losses(artefact.path)
        for written in by_writer(lines):
            samples = _Samples(artefact)
            told: bytes | None = None
            for line in written:
                text = line.text.encode("utf-8", "surrogateescape")
                if (named := _TOLD.match(text)) is not None:
                    told = named[1]
                    continue
                announced = told is not None and text.startswith(told)
                found = _SAMPLE.fullmatch(text) if announced or _SIGNATURE.match(line.text) is not None else None
                if found is not None and samples.add(found, line.number, line.byte_offset, line.host):
                    if samples.full():
                        yield from samples.take()
                elif announced:
                    losses.add("damaged-sample", line.number, f"no sample as the format has it: {line.text[:60]!r}")
            yield from samples.take()
        yield from losses


READER = PrometheusReader()
LINE_READER = PrometheusLineReader()


def _is_sample(line: bytes) -> bool:
    return _SAMPLE.fullmatch(line.rstrip(b"\r")) is not None


def _take(samples: _Samples, losses: Losses, piece: bytes, number: int, offset: int) -> None:
    """One line of a scrape."""
    found = _SAMPLE.fullmatch(piece.rstrip(b"\r"))
    if found is not None and samples.add(found, number, offset):
        return
    text = piece.strip()
    if text and not text.startswith(b"#"):
        shown = text[:60].decode("utf-8", "replace")
        losses.add("damaged-sample", number, f"no sample as the format has it: {shown!r}")


def _labels(text: str) -> dict[str, str] | None:
    """The labels between braces, escapes undone; None if they are damaged."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None:
            return None if text[at:].strip() else labels
        value = found[2]
        labels[found[1]] = _ESCAPE.sub(lambda e: "\n" if e[1] == "n" else e[1], value) if "\\" in value else value
        at = found.end()
    return labels


def _place(labels: dict[str, str], host: str | None) -> tuple[str | None, str | None, int | None]:
    """Host, device and port; the labels that say nothing else are taken out of `labels`."""
    named = next((name for name in _HOST_LABELS if labels.get(name)), None)
    if named is not None:
        host = labels[named].rsplit(":", 1)[0] if named == "instance" else labels.pop(named)
    device = labels.pop("device", None)
    if device is None and labels.get("gpu", "").isdigit():
        device = f"GPU {labels['gpu']}"
    port: int | None = None
    if labels.get("port", "").isascii() and labels.get("port", "").isdigit() and len(labels["port"]) < 11:
        port = int(labels["port"])
        port = port if port <= _LARGEST_PORT else None
        if port is not None:
            del labels["port"]
    return host, device, port


def _time_ns(stamp: bytes) -> int | None:
    """Since the epoch: seconds if it has a fraction or is below 1e11, else milliseconds."""
    seconds, _, fraction = stamp.partition(b".")
    if len(seconds) > 15:
        return None
    whole = int(seconds)
    if not fraction and abs(whole) >= 100_000_000_000:
        return whole * 1_000_000
    nanoseconds = int(fraction[:9].ljust(9, b"0")) if fraction else 0
    return whole * 1_000_000_000 + (nanoseconds if whole >= 0 and not stamp.startswith(b"-") else -nanoseconds)
