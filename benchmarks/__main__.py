"""`python -m benchmarks [GROUP...] [--only ID...] [--json] [--smoke] [--cases DIR] [--data DIR]`: measures figures and shows them beside their bars.

With --json one object a line: {"id", "what", "value", "unit", "command", "peers", "reason"}. Exit status 1 if a figure could not be
measured or misses its bar, 2 if the arguments are wrong.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import design, execute, explain, measure, predict, simulate, training
from benchmarks.rows import NO_TOOLCHAIN, Benchmark, Options, Row, print_table
from benchmarks.rows import measure as measured

GROUPS = {
    "explain": explain.BENCHMARKS,
    "predict": predict.BENCHMARKS,
    "design": design.BENCHMARKS,
    "execute": execute.BENCHMARKS,
    "simulate": simulate.BENCHMARKS,
    "measure": measure.BENCHMARKS,
    "training": training.BENCHMARKS,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what the arguments ask for; the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[1])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"one of: {', '.join(GROUPS)}; all if none is given")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="these figures alone")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--smoke", action="store_true", help="small inputs: whether it runs, not how fast it is")
    parser.add_argument(
        "--cases", type=Path, metavar="DIR", help="folder of triage cases; those of the tests if not given"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of measured/1 tables; ../shared/data/measured if not given"
    )
    given = parser.parse_args(arguments)
    for group in given.groups:
        if group not in GROUPS:
            parser.error(f"{group}: no such group; there is {', '.join(GROUPS)}")
    wanted = {figure.upper() for figure in given.only}
    chosen = {group: _chosen(GROUPS[group], wanted) for group in given.groups or GROUPS}
    unknown = wanted - {benchmark.id for benchmarks in chosen.values() for benchmark in benchmarks}
    if unknown:
        parser.error(f"no figure {', '.join(sorted(unknown))} in {', '.join(chosen)}")
    options = Options(given.smoke, given.cases, given.data)
    rows = itertools.chain.from_iterable(measured(group, benchmarks, options) for group, benchmarks in chosen.items())
    if given.json:
        kept = []
        for row in rows:
            print(row.to_json(), flush=True)
            kept.append(row)
    else:
        kept = print_table(rows)
    return 0 if all(_is_well(row) for row in kept) else 1


def _chosen(benchmarks: Sequence[Benchmark], wanted: set[str]) -> list[Benchmark]:
    return [benchmark for benchmark in benchmarks if not wanted or benchmark.id in wanted]


def _is_well(row: Row) -> bool:
    if row.value is None:
        return (row.reason or "").startswith(NO_TOOLCHAIN)
    return row.holds is not False


if __name__ == "__main__":
    sys.exit(main())
