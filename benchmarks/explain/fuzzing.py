"""Damaged inputs by the thousand, through everything that `busbw explain` does: none may raise, hang or eat the memory.

The corpus is every input of the tests; each reader gets its share of mutations of the inputs that it reads. `guided` lets atheris,
a coverage-guided fuzzer, find inputs of its own.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import itertools
import multiprocessing
import random
import re
import resource
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "corpus", "fuzz", "guided", "mutations", "survives"]

_REPOSITORY = Path(__file__).parents[2]
_INPUTS = ("tests/diagnosis/cases", "tests/readers/fixtures", "tests/readers/data", "src/busbw/cli/demo_inputs")
_ABOUT_CASES = {"case.json", "acceptable.json", "red_herrings.json"}
_LONGEST_INPUT = 200_000
"""Bytes; larger inputs are cut to their first lines, so that an input takes milliseconds."""
_LONGEST_S = 10.0
"""For one input, a thousand times what it should take."""
_MEMORY_BYTES = 6 * 2**30
"""Of address space for a worker, libraries included."""
_LONG_LINE = 64 * 2**10


@dataclass(slots=True)
class Outcome:
    """What came of many inputs."""

    inputs: int = 0
    failures: list[str] = field(default_factory=list)
    """Reader, what was raised, and the seed that makes the input again."""
    slowest_s: float = 0.0
    peak_bytes: int = 0
    readers: dict[str, int] = field(default_factory=dict)
    """Inputs made from what each reader reads."""

    def add(self, other: Outcome) -> None:
        """Counts another outcome in."""
        self.inputs += other.inputs
        self.failures += other.failures
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        for reader, inputs in other.readers.items():
            self.readers[reader] = self.readers.get(reader, 0) + inputs


def corpus() -> dict[str, list[bytes]]:
    """The inputs of the tests by the reader that finds something in them; archives of some of them as `archives`."""
    from busbw.readers import Reading, find_artefacts, read_artefact

    found: dict[str, list[bytes]] = defaultdict(list)
    for folder in _INPUTS:
        for file in sorted((_REPOSITORY / folder).rglob("*")):
            if not file.is_file() or file.name in _ABOUT_CASES or file.suffix == ".md":
                continue
            artefacts, _ = find_artefacts([str(file)])
            for artefact in artefacts:
                reading = Reading(artefact)
                for _ in read_artefact(artefact, reading):
                    pass
                data = artefact.file.read_bytes()
                if len(data) > _LONGEST_INPUT:
                    data = data[: data.rfind(b"\n", 0, _LONGEST_INPUT) + 1] or data[:_LONGEST_INPUT]
                for reader in reading.formats:
                    found[reader].append(data)
    some = [inputs[0] for inputs in found.values()]
    found["archives"] = [gzip.compress(data) for data in some[:8]] + [_tar(some)]
    return dict(found)


def _tar(members: Sequence[bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for number, data in enumerate(members):
            entry = tarfile.TarInfo(f"node{number}/output.txt")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def mutations(data: bytes, others: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    """Endless: first what transports do to a text, cuts at each line among it, then one to eight accidents at once."""
    lines = data.splitlines(keepends=True)
    yield data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    yield data.replace(b"\n", b"\r")
    yield b"\xef\xbb\xbf" + data
    yield data.decode("utf-8", "replace").encode("utf-16")
    yield data.replace(b"e", "é".encode("latin-1")) + "é\n".encode() + b"\xff\xfe\n"
    yield b"".join(b"\x1b[1;31m" + line.rstrip(b"\n") + b"\x1b[0m\x1b[K\n" for line in lines)
    yield b"".join(b"[1,0]<stdout>:" + line for line in lines)
    yield data.replace(b"\n", b" " * _LONG_LINE + b"\n", 3)
    for mark in (b": ", b"=", b" "):  # a run of blanks inside a line is where expressions go back and forth
        yield data.replace(mark, mark + b"a" + b" " * _LONG_LINE + b"b", 3)
        yield data.replace(mark, b" " * _LONG_LINE + mark, 3)
    yield re.sub(rb"[0-9]+", b"9" * 30, data)
    yield re.sub(rb"[0-9]+", b"-1", data)
    other = rng.choice(others).splitlines(keepends=True)
    yield b"".join(itertools.chain.from_iterable(itertools.zip_longest(lines, other, fillvalue=b"")))
    for end in itertools.accumulate(map(len, lines[:200])):
        yield data[:end]
        yield data[: max(0, end - rng.randint(1, 12))]
    while True:
        yield _damaged(data, others, rng)


_TELLING = (
    b"-",
    b"nan",
    b"inf",
    b"\0",
    b"\xff\xfe",
    b"\x1b[31m",
    b"1e999",
    b"0x",
    b"\r",
    b'"',
    b"{",
    b"]",
    b"<",
    b"|",
    b"\t",
    b": ",
)


def _damaged(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    text = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not text:
            break
        at = rng.randrange(len(text))
        match rng.randint(0, 7):
            case 0:
                del text[at : at + rng.randint(1, 40)]
            case 1:
                text[at] = rng.randrange(256)
            case 2:
                other = rng.choice(others)
                begin = rng.randrange(len(other) or 1)
                text[at:at] = other[begin : begin + rng.randint(1, 400)]
            case 3:
                del text[at:]
            case 4:
                text[at:at] = b"1" * rng.choice((1, 4, 9, 19, 31, 400, 6000))
            case 5:
                lines = text.split(b"\n")
                rng.shuffle(lines)
                text = bytearray(b"\n".join(lines))
            case 6:
                begin = rng.randrange(len(text))
                text[at:at] = text[begin : begin + rng.randint(1, 400)]
            case _:
                text[at : at + 1] = rng.choice(_TELLING)
    return bytes(text)


class _HangError(Exception):
    pass


def survives(data: bytes, folder: Path) -> None:
    """Explains these bytes as a user's file. Raises whatever should not have been raised, and AssertionError for an answer that is none."""
    from busbw.diagnosis import explain, to_json
    from busbw.readers import find_artefacts

    file = folder / "input"
    file.write_bytes(data)
    with tempfile.TemporaryDirectory(dir=folder) as spool:
        artefacts, losses = find_artefacts([str(file)], Path(spool))
        diagnosis = explain(artefacts, losses).diagnosis
        verdict = to_json(diagnosis)["verdict"]
    if verdict not in ("healthy", "faulty", "unknown") or not all(finding.evidence for finding in diagnosis.findings):
        raise AssertionError(f"verdict {verdict}, or a finding without evidence")


def fuzz(inputs: Mapping[str, Sequence[bytes]], runs: int, seed: int, workers: int = 2) -> Outcome:
    """Lets `runs` mutations a reader go through, in processes of their own."""
    shares = [(reader, tuple(inputs[reader]), runs, seed) for reader in sorted(inputs)]
    everything = [data for group in inputs.values() for data in group]
    total = Outcome()
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, initializer=_limit, initargs=(everything,)) as pool:
        for outcome in pool.imap_unordered(_share, shares):
            total.add(outcome)
    return total


_others: list[bytes] = []


def _limit(everything: list[bytes]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _hang)
    _others[:] = everything


def _hang(*_: Any) -> None:
    raise _HangError(f"took more than {_LONGEST_S:g} s")


def _share(share: tuple[str, tuple[bytes, ...], int, int]) -> Outcome:
    reader, inputs, runs, seed = share
    rng = random.Random(f"{reader} {seed}")
    outcome = Outcome(readers={reader: 0})
    streams = [mutations(data, _others, rng) for data in inputs]
    with tempfile.TemporaryDirectory() as name:
        for number in range(runs):
            data = next(streams[number % len(streams)])
            began = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, _LONGEST_S)
            try:
                survives(data, Path(name))
            except (Exception, MemoryError) as error:  # whatever it is: that is what is looked for
                if len(outcome.failures) < 20:
                    outcome.failures.append(f"{reader}, seed {seed}, input {number}: {type(error).__name__}: {error}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            outcome.slowest_s = max(outcome.slowest_s, time.perf_counter() - began)
            outcome.inputs += 1
    outcome.readers[reader] = outcome.inputs
    outcome.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return outcome


def guided(inputs: Mapping[str, Sequence[bytes]], runs: int, seed: int) -> Outcome | None:
    """Inputs that atheris makes, led by the coverage of busbw's own code. None if atheris is not installed."""
    if importlib.util.find_spec("atheris") is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        seeds = Path(name) / "seeds"
        seeds.mkdir()
        for number, data in enumerate(itertools.chain.from_iterable(inputs.values())):
            (seeds / str(number)).write_bytes(data[:20_000])
        command = [sys.executable, "-m", "benchmarks.explain.fuzzing", str(seeds), f"-runs={runs}", f"-seed={seed}",
                   "-max_len=20000", f"-timeout={_LONGEST_S:g}", "-rss_limit_mb=4096", f"-artifact_prefix={name}/"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd=_REPOSITORY, check=False)
    made = re.findall(r"^#(\d+)", done.stderr, re.MULTILINE)
    outcome = Outcome(inputs=int(made[-1]) if made else 0)
    if done.returncode != 0:
        outcome.failures.append("guided: " + " ".join(done.stderr.split()[-60:]))
    return outcome


def _guided_process() -> None:
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["busbw"]):
        import busbw.diagnosis
        import busbw.readers

        busbw.readers.all_readers()
    folder = Path(tempfile.mkdtemp())
    survive: Callable[[bytes], None] = lambda data: survives(data, folder)  # noqa: E731 - atheris wants a function of one argument
    atheris.Setup(sys.argv, survive)
    with contextlib.suppress(SystemExit):
        atheris.Fuzz()


if __name__ == "__main__":
    _guided_process()
