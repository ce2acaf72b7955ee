"""The circle: a schedule made for the mini cluster is verified, predicted, simulated, run on CPU ranks and on the hosts; then one link is halved and must be named.

Everything that diagnosis gets lies in files that a user could have: the table of all pairs of hosts, the rows of the runs, the rows of the simulation, and a
store that read them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.execute.plans import expected, inputs
from benchmarks.minicluster.namespaces import MiniCluster
from benchmarks.minicluster.predicting import PAIR_SIZES, Line, calibrated, cluster_of, cluster_yaml, exchanges
from benchmarks.minicluster.running import Case, Timed, run_cases
from busbw.collectives import BoundSchedule, bus_factor, plan_of
from busbw.collectives.bounds import CapacityGraph
from busbw.collectives.legality import verify_plan
from busbw.collectives.plan import Plan
from busbw.collectives.schedule_json import to_json
from busbw.execution import run
from busbw.hardware import Cluster
from busbw.observations import Rows, rows_of
from busbw.observations.rows_file import rows_lines
from busbw.simulation import WHOLE, Conditions, observations, simulate
from busbw.synthesis import Candidate, design

__all__ = ["Circle", "Found", "close_circle"]

_MADE_HERE = ("forest", "greedy", "exchange")
"""Origins of schedules that were synthesised, not taken from the library."""
_ROUNDS = 4
"""Messages of a pair."""
_PAIR_BYTES = 256 << 10
_SHARE = 0.5
"""Of its rate, that the link keeps."""
_ENOUGH = 1.01
_NEAR = 0.15
"""The bar of M7."""


@dataclass(frozen=True, slots=True)
class Found:
    """What `busbw explain` says of the store, first finding first."""

    summaries: tuple[str, ...]
    kinds: tuple[str, ...]
    victim: str
    """The link that was halved."""

    @property
    def named(self) -> bool:
        """Whether the first finding names it."""
        return bool(self.summaries) and self.victim in self.summaries[0]


@dataclass(frozen=True, slots=True)
class Circle:
    """All that it gave."""

    line: Line
    candidate: Candidate
    legal: bool
    cpu_right: bool
    predicted_s: float
    """By the model that ranked it."""
    simulated_s: float
    healthy: Timed
    halved: Timed
    simulated_halved_s: float
    before: Found
    after: Found

    @property
    def error(self) -> float:
        """The larger of both predictions' errors, a share of the measured time."""
        measured = self.healthy.best_s
        return max(abs(told / measured - 1) for told in (self.predicted_s, self.simulated_s))

    @property
    def halved_error(self) -> float:
        """Of the run with the slow link, simulated with that link."""
        return self.simulated_halved_s / self.halved.best_s - 1

    @property
    def holds(self) -> bool:
        """Whether all was right, times were within 15 % of predictions, nothing was found before, and the link was named after."""
        return self.right and self.error <= _NEAR and not self.before.summaries and self.after.named

    @property
    def right(self) -> bool:
        """Whether every result was what it must be."""
        return self.legal and self.cpu_right and not self.healthy.wrong and not self.halved.wrong


def close_circle(
    cluster: MiniCluster,
    folder: Path,
    *,
    size_bytes: int = 1 << 20,
    victim: int | None = None,
    repeats: int = 3,
    pair_sizes: Sequence[int] = PAIR_SIZES,
    say: Callable[[str], None] = lambda _: None,
) -> Circle:
    """Goes round. Cluster and schedule are left in the folder, what was measured in folder/healthy and folder/halved, each with its store."""
    hosts = cluster.hosts
    victim = hosts // 2 + 1 if victim is None else victim
    line = calibrated(cluster, sizes=pair_sizes)
    model = cluster_of(hosts, line)
    candidate, bound = synthesised(model, line, size_bytes)
    plan = plan_of(bound)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.yaml").write_text(cluster_yaml(hosts, line))
    (folder / "schedule.json").write_text(
        to_json(replace(bound.schedule, fixed=bound.sizes, params=bound.params)) + "\n"
    )
    verdict = verify_plan(plan)
    say(f"made: {candidate.name} ({candidate.origin}), {candidate.steps} steps; {'legal' if verdict.legal else verdict.violations[0]}")  # fmt: skip
    cpu_right = _on_cpu_ranks(bound)
    say(f"on CPU ranks: {'right' if cpu_right else 'WRONG'}")
    timeline = simulate(plan, model, size_bytes=size_bytes, runtime=WHOLE)
    say(f"predicted {candidate.time_s * 1e3:.1f} ms, simulated {timeline.time_s * 1e3:.1f} ms")
    case = Case("synthesised", plan, size_bytes, tuple(range(hosts)), repeats)
    before, healthy = _measured_and_explained(cluster, case, folder / "healthy", observations(timeline), victim)
    say(f"on {hosts} hosts: {healthy.best_s * 1e3:.1f} ms; busbw explain: {before.summaries[0] if before.summaries else 'nothing wrong'}")  # fmt: skip
    cluster.set_rate(victim, _SHARE)
    try:
        after, halved = _measured_and_explained(cluster, case, folder / "halved", observations(timeline), victim)
    finally:
        cluster.set_rate(victim, 1.0)
    say(f"link of {cluster.name(victim)} halved: {halved.best_s * 1e3:.1f} ms; busbw explain: {after.summaries[0] if after.summaries else 'nothing wrong'}")  # fmt: skip
    degraded = _with_slow_link(model, plan, size_bytes, victim)
    return Circle(
        line, candidate, verdict.legal, cpu_right, candidate.time_s, timeline.time_s, healthy, halved, degraded, before, after
    )  # fmt: skip


def synthesised(model: Cluster, line: Line, size_bytes: int) -> tuple[Candidate, BoundSchedule]:
    """The fastest all_reduce that was made for this cluster, library schedules left aside, its time by the model that ranked it.

    In the fewest slices that cost less than 1 %: what each message costs a rank that Python runs is not in the model.
    """
    graph = CapacityGraph.of_cluster(model)
    found = design(graph, "all_reduce", size_bytes, alpha_s=line.alpha_s, gpus_per_node=1)
    candidate = next(one for one in found.candidates if one.origin in _MADE_HERE)

    def time_s(one: Candidate) -> float:
        return simulate(plan_of(one.bind()), model, size_bytes=size_bytes, runtime=WHOLE).time_s

    most = _ENOUGH * time_s(candidate)
    tried = (replace(candidate, parts=1 << power) for power in range(candidate.parts.bit_length()))
    chosen = next((one for one in tried if time_s(one) <= most), candidate)
    return chosen, chosen.bind()


def _on_cpu_ranks(bound: BoundSchedule) -> bool:
    plan = plan_of(bound)
    arrays = inputs(plan, 10_007, "float32")
    got = run(plan, arrays, backend="processes")
    return all(np.array_equal(mine, want) for mine, want in zip(got, expected(plan, arrays), strict=True))


def _with_slow_link(model: Cluster, plan: Plan, size_bytes: int, victim: int) -> float:
    conditions = Conditions(degraded_links={f"nic{victim} -> leaf0": _SHARE})
    return simulate(plan, model, size_bytes=size_bytes, runtime=WHOLE, conditions=conditions).time_s


# What a user would have measured


def pair_rates(cluster: MiniCluster) -> list[tuple[int, int, float]]:
    """Bytes per second from every host to every other, both ways at once, in rounds in which every host has one partner."""
    found = []
    for round_ in _matchings(cluster.hosts):
        partners = list(range(cluster.hosts))
        for one, other in round_:
            partners[one], partners[other] = other, one
        plan = exchanges(partners, _ROUNDS)
        timed = run_cases(cluster, [Case("pairs", plan, _PAIR_BYTES, tuple(range(cluster.hosts)), 2)])[0]
        for one, other in round_:
            found += [(a, b, _ROUNDS * _PAIR_BYTES / timed.rank_times_s[b]) for a, b in ((one, other), (other, one))]
    return found


def _matchings(hosts: int) -> list[list[tuple[int, int]]]:
    """Rounds in which all hosts are in pairs (one is left over where their number is odd), every pair once: the circle method."""
    seats: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(one, other) for one, other in facing if one is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return rounds


def _measured_and_explained(
    cluster: MiniCluster, case: Case, folder: Path, simulated: Sequence[Rows], victim: int
) -> tuple[Found, Timed]:
    folder.mkdir(parents=True, exist_ok=True)
    timed = run_cases(cluster, [case])[0]
    table = [
        f"{cluster.name(a)}:eth0 {cluster.name(b)}:eth0 {rate / 1e9:.6f}" for a, b, rate in sorted(pair_rates(cluster))
    ]
    (folder / "pairs.txt").write_text("\n".join(table) + "\n")
    collective = case.plan.collective
    algbw = case.size_bytes / timed.best_s
    row = {
        "tool": "busbw run", "table_index": 0, "collective": collective, "size_bytes": case.size_bytes, "dtype": "float32", "redop": "sum",
        "ranks": case.plan.ranks, "nodes": cluster.hosts, "in_place": False, "time_ns": round(timed.best_s * 1e9), "algbw_bytes_per_s": algbw,
        "busbw_bytes_per_s": algbw * bus_factor(collective, case.plan.ranks), "wrong": float(timed.wrong), "iterations": len(timed.times_s),
    }  # fmt: skip
    (folder / "run.jsonl").write_text("".join(rows_lines({"by": "benchmarks.minicluster"}, [rows_of("measurements", [row])])))  # fmt: skip
    (folder / "simulated.jsonl").write_text("".join(rows_lines({"by": "busbw simulate"}, simulated)))
    return _explained(folder, f"{cluster.name(victim)}:eth0"), timed


def _explained(folder: Path, victim: str) -> Found:
    """What `busbw explain STORE` says, once `busbw read --store STORE` has read the files."""
    store = folder / "store"
    files = [str(folder / name) for name in ("pairs.txt", "run.jsonl", "simulated.jsonl")]
    _busbw("read", *files, "--store", str(store))
    told = json.loads(_busbw("explain", str(store), "--json"))
    findings = [one for one in told["findings"] if one["severity"] in ("fatal", "major")]
    return Found(tuple(one["summary"] for one in findings), tuple(one["kind"] for one in findings), victim)


def _busbw(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "busbw", *arguments], check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"busbw {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
