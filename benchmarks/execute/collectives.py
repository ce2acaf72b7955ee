"""X1 to X4, X6 and X9 out of a contest: worst ratios, the size where they are worst, and the peer that was the faster one there."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping

from benchmarks.execute.contest import OPEN_MPI, Contest, Team, contest, sizes_between
from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["gloo", "many_ranks", "others", "private", "round_trip", "window"]

_LAST = 64 << 20
_SMOKE_LAST = 1 << 16
OTHERS = ("reduce_scatter", "all_gather", "all_to_all", "broadcast")
_WINDOW = "ours: all_reduce_window"
_MARGIN = 0.97
"""Of a bar: turns go on until a ratio is clearly within it, so that a lucky minimum doesn't end them."""
Found = dict[str, dict[int, float]]


def _sizes(options: Options) -> list[int]:
    return sizes_between(16, _SMOKE_LAST, 16) if options.smoke else sizes_between(16, _LAST, 2)


def _rounds(options: Options) -> tuple[int, int]:
    """Turns of everybody at each size, and the most of them where a ratio misses its bar."""
    return (1, 1) if options.smoke else (3, 12)


def _open_mpi(times: Mapping[str, float]) -> float:
    """Seconds of the faster Open MPI; infinite where there is none, which _need_open_mpi lets pass in a smoke run only."""
    return min((times[name] for name in OPEN_MPI if name in times), default=math.inf)


def _need_open_mpi(options: Options, run: Contest) -> None:
    if not options.smoke and not any(team.name in OPEN_MPI for team in run.teams):
        raise NotMeasurableError("; ".join(["no Open MPI", *run.absent]) + '. Install it: pip install "busbw[peers]"')


@functools.cache
def _all_reduces(options: Options) -> Found:
    """Times of all_reduce, private and on window memory, with all peers in the same turns."""
    run = contest()
    wanted = {team.name: ["all_reduce"] for team in run.teams} | {"ours": ["all_reduce", "all_reduce_window"]}
    _need_open_mpi(options, run)

    def is_well(size: int, times: Mapping[str, float]) -> bool:
        best = _open_mpi(times)
        if times[_WINDOW] > 0.5 * _MARGIN * best or times["ours"] > 0.8 * _MARGIN * best:
            return False
        return "gloo" not in times or size >= 1 << 20 or times["gloo"] * _MARGIN >= 10 * times["ours"]

    rounds, most = _rounds(options)
    return run.times(wanted, _sizes(options), rounds=rounds, most_rounds=most, is_well=is_well)


@functools.cache
def _others(options: Options) -> dict[str, Found]:
    run = contest()
    _need_open_mpi(options, run)
    rounds, most = _rounds(options)
    return {
        collective: run.times(
            {team.name: [collective] for team in run.teams if team.name != "gloo"},
            _sizes(options),
            rounds=rounds,
            most_rounds=most,
            is_well=lambda _, times: times["ours"] <= _MARGIN * _open_mpi(times),
        )
        for collective in OTHERS
    }


def _of_size(found: Found, size: int) -> dict[str, float]:
    return {name: times[size] for name, times in found.items()}


def _shown(size: int) -> str:
    from busbw.units import format_bytes

    return format_bytes(size)


def _against_open_mpi(found: Found, ours: str) -> tuple[float, dict[int, float]]:
    ratios = {size: time_s / _open_mpi(_of_size(found, size)) for size, time_s in found[ours].items()}
    return max(ratios.values()), ratios


def _listed(ratios: Mapping[int, float]) -> str:
    worst = max(ratios, key=ratios.__getitem__)
    return f"worst at {_shown(worst)}; " + ", ".join(f"{_shown(size)} {ratio:.2f}" for size, ratio in ratios.items())


def _peers(found: Found) -> dict[str, float]:
    """Each contender's microseconds at 1 MiB, or at the largest size that was run."""
    return {f"{name}, us at {_shown(size)}": times[size] * 1e6 for name, times in found.items() for size in [min(1 << 20, max(times))]}  # fmt: skip


def window(options: Options) -> Measured:
    """X1: all_reduce on memory that all ranks map, which copies nothing, over the faster Open MPI's on private buffers."""
    found = _all_reduces(options)
    worst, ratios = _against_open_mpi(found, _WINDOW)
    return Measured(worst, _peers(found), f"window memory, so no copy; {_listed(ratios)}")


def private(options: Options) -> Measured:
    """X2: all_reduce on private buffers over the faster Open MPI's."""
    found = _all_reduces(options)
    worst, ratios = _against_open_mpi(found, "ours")
    return Measured(worst, _peers(found), _listed(ratios))


def others(options: Options) -> Measured:
    """X3: the worst ratio of the four other collectives."""
    found = _others(options)
    parts = {name: _against_open_mpi(times, "ours") for name, times in found.items()}
    peers = {f"{name}, worst ratio": worst for name, (worst, _) in parts.items()}
    note = ". ".join(f"{name}: {_listed(ratios)}" for name, (_, ratios) in parts.items())
    return Measured(max(worst for worst, _ in parts.values()), peers, note)


def gloo(options: Options) -> Measured:
    """X4: gloo's all_reduce over ours below 1 MiB, both on private buffers."""
    found = _all_reduces(options)
    if "gloo" not in found:
        if options.smoke:
            return Measured(0.0, note="there is no gloo here: not compared")
        raise NotMeasurableError("; ".join(contest().absent))
    below = [size for size in found["gloo"] if size < 1 << 20]
    ratios, on_window = (
        {size: found["gloo"][size] / found[ours][size] for size in below} for ours in ("ours", _WINDOW)
    )
    worst = min(ratios, key=ratios.__getitem__)
    note = f"private buffers; worst at {_shown(worst)}; on window memory at least {min(on_window.values()):.3g}"
    peers = {f"gloo, us at {_shown(size)}": found["gloo"][size] * 1e6 for size in below[::4]}
    return Measured(ratios[worst], peers, note)


def round_trip(options: Options) -> Measured:
    """X6: all_reduce of 16 B over a cache line's way to the other core and back."""
    team = contest().teams[0]
    bare = reduced = python = math.inf
    for _ in range(2 if options.smoke else 40):
        bare = min(bare, team.time_s("round_trip", 16, 6, 1000))
        reduced = min(reduced, team.time_s("all_reduce_window", 16, 6, 1000))
        python = min(python, team.time_s("all_reduce_from_python", 16, 6, 200))
    note = f"a round trip takes {bare * 1e9:.0f} ns, all_reduce {reduced * 1e9:.0f} ns, called from Python each time {python * 1e9:.0f} ns"
    return Measured(reduced / bare, note=note)


def many_ranks(options: Options) -> Measured:
    """X9: eight ranks' all_reduce of 1 MiB over two ranks', all checked."""
    size, turns = (1 << 16 if options.smoke else 1 << 20), (1 if options.smoke else 12)
    two = contest().teams[0]
    with contextlib.closing(Contest.start(8, mpi=False, gloo=False)) as run:
        eight: Team = run.teams[0]
        few = many = math.inf
        for _ in range(turns):
            few = min(few, two.time_s("all_reduce", size, 3, 4))
            many = min(many, eight.time_s("all_reduce", size, 3, 4))
    if math.inf in (few, many):
        raise NotMeasurableError("a result was wrong")
    return Measured([1, many / few], note=f"results right; {few * 1e6:.0f} us with 2 ranks, {many * 1e6:.0f} us with 8")
