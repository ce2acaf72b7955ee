"""Damaged files of plans and schedules: `python -m benchmarks.design.fuzz [--trials N] [--seed N]`.

Files of every format are changed by bytes, words, lines and, JSON, by parts of its tree. They are parsed, verified, and given to `busbw verify`,
`busbw convert` and `busbw show` as a user would. What may come of it: a plan, or one clear error; the command line: an exit status of 0, 1 or 2. All else
is counted: exceptions, more than 30 s of CPU time, more than 3 GiB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import multiprocessing
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.design.progress import Progress

__all__ = ["damaged", "fuzz", "fuzz_files", "seeds_of_every_format"]

_LONGEST_S = 30.0
"""Of CPU time: a ring that a change binds to 64 ranks takes 14 s to be converted to MSCCL XML on a busy machine (measured)."""
_MOST_GROWTH_BYTES = 3 << 30
_MOST_BYTES = 6 << 30
"""Address space of a process that fuzzes, so that a file that asks for all memory ends in an exception, which is counted."""
_BATCH = 2_500
_INSTRUCTIONS = 1_000_000
_WORDS = (
    b"0", b"-1", b"1", b"2", b"64", b"65536", b"2147483647", b"4294967296", b"99999999999999999999", b'"x"', b"null", b"true", b"[]", b"{}",
    b"1e9", b"1e400", b"NaN", b"i", b"s", b"rrcs", b"re", b"nop", b"LL128", b"port", b"switch",
)  # fmt: skip
_NUMBERS = (-1, 0, 1, 2, 3, 7, 64, 255, 256, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 63, 10**30)


def seeds_of_every_format() -> dict[str, bytes]:
    """Small files in each format, made from the library, and one-sided plans with packets, groups, semaphores and slices; a schedule with sizes."""
    from benchmarks.design.one_sided import group_plan, one_sided_plan, packet_plan, sliced_plan
    from busbw.collectives.algorithms import LIBRARY
    from busbw.collectives.exchange.busbw_json import write_busbw_json
    from busbw.collectives.exchange.msccl_xml import write_msccl_xml
    from busbw.collectives.exchange.mscclpp_json import write_mscclpp_json
    from busbw.collectives.exchange.targets import TARGETS
    from busbw.collectives.lowering import plan_of
    from busbw.collectives.schedule_json import to_json

    ring = plan_of(LIBRARY["ring_all_reduce"]().bind(3), in_place=True)
    tree = plan_of(LIBRARY["double_binary_tree_all_reduce"]().bind(4, parts=2), in_place=True)
    seeds = {
        "ring.xml": write_msccl_xml(ring, TARGETS["rccl"])[0],
        "ring-msccl.xml": write_msccl_xml(ring, TARGETS["msccl"])[0],
        "tree.xml": write_msccl_xml(tree, TARGETS["rccl"])[0],
        "ring.json": write_busbw_json(ring),
        "tree.json": write_busbw_json(tree),
        "one-sided.json": write_busbw_json(one_sided_plan()),
        "sliced.json": write_busbw_json(sliced_plan()),
        "mscclpp.json": write_mscclpp_json(one_sided_plan(), TARGETS["mscclpp-0.10"])[0],
        "mscclpp-group.json": write_mscclpp_json(group_plan(), TARGETS["mscclpp-0.10"])[0],
        "mscclpp-packets.json": write_mscclpp_json(packet_plan(), TARGETS["mscclpp-0.10"])[0],
        "mscclpp-first.json": write_mscclpp_json(packet_plan(), TARGETS["mscclpp-0.7"])[0],
    }
    for name in ("ring_all_reduce", "bruck_all_gather", "double_binary_tree_all_reduce"):
        schedule = json.loads(to_json(LIBRARY[name]()))
        schedule["fixed"] = {"r": 4}
        seeds[f"{name}.json"] = json.dumps(schedule)
    return {name: text.encode() for name, text in seeds.items()}


def damaged(data: bytes, lots: np.random.Generator) -> bytes:
    """The same file with one to three changes."""
    for _ in range(int(lots.integers(1, 4))):
        changed = _other_tree(data, lots) if data[:1] == b"{" and lots.integers(2) else None
        data = _other_text(data, lots) if changed is None else changed
    return data


def _other_text(given: bytes, lots: np.random.Generator) -> bytes:
    data = bytearray(given)
    tokens = [m.span() for m in re.finditer(rb'-?\d+|"[^"\n]{0,40}"|[a-z_]+', given)]
    first, last = tokens[int(lots.integers(len(tokens)))] if tokens else (0, 0)
    action = int(lots.integers(7))
    if action == 0:
        data[first:last] = _WORDS[int(lots.integers(len(_WORDS)))]
    elif action == 1 and len(data) > 1:
        data[int(lots.integers(len(data)))] = int(lots.integers(256))
    elif action == 2:
        other = tokens[int(lots.integers(len(tokens)))] if tokens else (0, 0)
        data[first:last] = data[other[0] : other[1]]
    elif action == 3:
        del data[first:last]
    elif action == 4:
        del data[int(lots.integers(len(data) + 1)) :]
    elif action == 5:
        lines = given.split(b"\n")
        place = int(lots.integers(len(lines)))
        data[:] = b"\n".join([*lines[:place], lines[place], *lines[place:]])
    elif given[first:last].strip(b'"').lstrip(b"-").isdigit():  # a neighbour of a number, which is often still valid
        quote = b'"' if given[first : first + 1] == b'"' else b""
        number = int(given[first:last].strip(b'"')) + int(lots.integers(-2, 3))
        data[first:last] = quote + str(number).encode() + quote
    return bytes(data)


def _other_tree(given: bytes, lots: np.random.Generator) -> bytes | None:
    """A JSON document with a part changed, taken out, doubled, or put in the place of another; None if it is none."""
    try:
        tree = json.loads(given)
    except (ValueError, RecursionError):
        return None
    parts = list(_parts(tree))
    if not parts:
        return None
    holder, key = parts[int(lots.integers(len(parts)))]
    action = int(lots.integers(5))
    if action == 0:
        del holder[key]
    elif action == 1:
        other, place = parts[int(lots.integers(len(parts)))]
        holder[key] = copy.deepcopy(other[place])
    elif action == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif action == 3 and isinstance(holder, list):
        place = int(lots.integers(len(holder)))
        holder[key], holder[place] = holder[place], holder[key]
    else:
        holder[key] = _NUMBERS[int(lots.integers(len(_NUMBERS)))]
    try:
        return json.dumps(tree, indent=None).encode()
    except (ValueError, RecursionError):
        return None


def _parts(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a tree as what holds it and its key there."""
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    for key, value in items:
        yield tree, key
        yield from _parts(value)


def fuzz(seeds: dict[str, bytes], trials: range, seed: int, folder: Path) -> list[str]:
    """What went wrong with damaged files of these contents; files are written to the folder."""
    wrong = []
    names = sorted(seeds)
    for trial in trials:
        lots = np.random.default_rng([seed, trial])
        name = names[int(lots.integers(len(names)))]
        data = damaged(seeds[name], lots)
        way = _WAYS[int(lots.integers(len(_WAYS)))]
        begun, had = time.process_time(), _peak_bytes()
        said = way(data, name, folder)
        took, grown = time.process_time() - begun, _peak_bytes() - had
        if said is None and took > _LONGEST_S:
            said = f"took {took:.0f} s"
        if said is None and grown > _MOST_GROWTH_BYTES:
            said = f"took {grown >> 20} MiB"
        if said is not None:
            wrong.append(f"seed {seed}, trial {trial}, {name}, {way.__name__.strip('_')}: {said}")
    return wrong


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _parse(data: bytes, name: str, _folder: Path) -> str | None:
    return _called(data, name, instructions=0)


def _verify(data: bytes, name: str, _folder: Path) -> str | None:
    return _called(data, name, instructions=_INSTRUCTIONS)


def _called(data: bytes, name: str, instructions: int) -> str | None:
    from busbw.collectives.exchange.files import parse_plan
    from busbw.collectives.legality import verify_plan
    from busbw.errors import InputError

    try:
        read = parse_plan(data, name)
        if instructions:
            read.verify_schedule()
            verify_plan(read.plan, most_instructions=instructions)
    except InputError:
        pass
    except Exception as error:  # the figure is that there are none
        return _told(error)
    return None


def _command(data: bytes, name: str, folder: Path, verb: str, *options: str) -> str | None:
    """The whole command line, as a user calls it."""
    from busbw.cli.app import main

    path = folder / name
    path.write_bytes(data)
    outputs = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(outputs[0]), contextlib.redirect_stderr(outputs[1]):
            main([verb, str(path), *options])
    except SystemExit as end:
        status = end.code
    except BaseException as error:  # the figure is that there are none
        return _told(error)
    told = outputs[1].getvalue()
    if status not in (0, 1, 2) or (status == 2 and not told.strip()):
        return f"exit status {status}: {told[-300:]}"
    return None


def _verb(data: bytes, name: str, folder: Path, call: Callable[[str], None]) -> str | None:
    """One verb's function, without the parsing of a command line."""
    import typer

    from busbw.errors import InputError

    path = folder / name
    path.write_bytes(data)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            call(str(path))
    except (InputError, typer.BadParameter):
        pass
    except typer.Exit as end:
        return None if end.exit_code in (0, 1, 2) else f"exit status {end.exit_code}"
    except Exception as error:  # the figure is that there are none
        return _told(error)
    return None


def _told(error: BaseException) -> str:
    frames = [f"{Path(one.filename).name}:{one.name}" for one in traceback.extract_tb(error.__traceback__)[-3:]]
    return f"{type(error).__name__}: {str(error)[:200]} ({', '.join(frames)})"


def _busbw_verify(data: bytes, name: str, folder: Path) -> str | None:
    from busbw.cli.plans import verify

    return _verb(data, name, folder, lambda path: verify([path], as_json=len(data) % 2 == 0))


def _busbw_show(data: bytes, name: str, folder: Path) -> str | None:
    from busbw.cli.plans import show

    svg = str(folder / "out.svg") if len(data) % 8 == 0 else None
    return _verb(data, name, folder, lambda path: show(path, svg=svg, as_json=len(data) % 2 == 0))


def _busbw_convert(data: bytes, name: str, folder: Path) -> str | None:
    from busbw.cli.plans import convert

    targets = ("rccl", "msccl", "mscclpp-0.10", "mscclpp-0.7", "busbw")
    target = targets[len(data) % len(targets)]
    return _verb(data, name, folder, lambda path: convert(path, str(folder / "out"), target=target))


def _busbw_convert_to_goal(data: bytes, name: str, folder: Path) -> str | None:
    from busbw.cli.plans import convert

    return _verb(data, name, folder, lambda path: convert(path, str(folder / "out"), to="goal", size="1MiB"))


def _whole_command(data: bytes, name: str, folder: Path) -> str | None:
    words = (("verify",), ("verify", "--json"), ("show",), ("show", "--json"), ("convert", str(folder / "out.xml")))
    return _command(data, name, folder, *words[len(data) % len(words)])


_WAYS: tuple[Callable[[bytes, str, Path], str | None], ...] = (
    *[_parse] * 6, *[_verify] * 6, *[_busbw_verify] * 3, *[_busbw_show] * 2, *[_busbw_convert] * 3, _busbw_convert_to_goal, _whole_command,
)  # fmt: skip


def _batch(first: int, last: int, seed: int) -> list[str]:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        return fuzz(seeds_of_every_format(), range(first, last), seed, Path(folder))


def fuzz_files(trials: int, seed: int, notes: Progress | None = None) -> list[str]:
    """What went wrong in so many trials, each batch in a process of its own, which may die without taking the others along."""
    wrong: list[str] = []
    context = multiprocessing.get_context("spawn")
    for first in range(0, trials, _BATCH):
        last = min(first + _BATCH, trials)
        key = f"seed {seed}, trials {first} to {last - 1}"
        found = notes.known(key) if notes else None
        if found is None:
            with context.Pool(1) as pool:
                pending = pool.apply_async(_batch, (first, last, seed))
                try:
                    found = pending.get(timeout=600)
                except multiprocessing.TimeoutError:
                    found = [f"{key}: the process died, or one file took minutes"]
            if notes:
                notes.learn(key, found)
        wrong += found
    return wrong


def main() -> int:
    """Prints what went wrong; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.design.fuzz", description=__doc__)
    parser.add_argument("--trials", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wrong = fuzz_files(given.trials, given.seed, Progress("fuzz"))
    for line in wrong:
        print(line)
    print(f"{given.trials} damaged files, {len(wrong)} of them end in anything but a plan or one clear error")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
