"""The standard questions about samples, as SQL: what `Store.query` and `busbw query --standard` take.

Percentiles are exact, interpolated between neighbours (DuckDB's quantile_cont); a sample counts once, whatever `calls` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from busbw.errors import InputError
from busbw.observations.store.layout import RUN_ID, RunId

__all__ = [
    "RUNS_TAKEN",
    "STANDARD",
    "cell_percentiles",
    "compare_runs",
    "history",
    "latest",
    "rank_medians",
    "stragglers",
]

_CELL = "collective, size_bytes, dtype, redop, ranks, nodes, in_place, backend, algorithm, variant"
_ORDER = "collective, backend, algorithm, variant, dtype, redop, ranks, nodes, in_place, size_bytes"
_DESCRIBED = f"(SELECT DISTINCT cell, {_CELL} FROM cells)"


def latest() -> str:
    """Of each cell the newest run that has it: samples, least and median time.

    Source of "newest": when the run began, `runs.created_ns`.
    """
    return f"""
WITH newest AS (SELECT cell, arg_max(run_id, created_ns) AS run_id FROM cells JOIN runs USING (run_id) GROUP BY cell),
     found AS (SELECT run_id, cell, count(*) AS samples, min(time_ns) AS min_ns, quantile_cont(time_ns, 0.5) AS p50_ns
               FROM samples WHERE run_id IN (SELECT run_id FROM newest) GROUP BY run_id, cell)
SELECT {_CELL}, run_id, path AS run, created_ns, samples, min_ns, p50_ns
FROM found JOIN newest USING (cell, run_id) JOIN {_DESCRIBED} USING (cell) JOIN runs USING (run_id) ORDER BY {_ORDER}"""


def cell_percentiles(run: RunId | None = None) -> str:
    """Percentiles of each cell over ranks and iterations, of one run or of all of them together."""
    return f"""
WITH found AS (SELECT cell, count(*) AS samples, min(time_ns) AS min_ns, max(time_ns) AS max_ns, avg(time_ns) AS mean_ns,
                      quantile_cont(time_ns, [0.5, 0.9, 0.99, 0.999]) AS q FROM samples {_where(run)} GROUP BY cell)
SELECT {_CELL}, samples, min_ns, q[1] AS p50_ns, q[2] AS p90_ns, q[3] AS p99_ns, q[4] AS p999_ns, max_ns, mean_ns
FROM found JOIN {_DESCRIBED} USING (cell) ORDER BY {_ORDER}"""


def rank_medians(run: RunId | None = None) -> str:
    """Median time of each rank in each cell, beside the median of the cell's ranks, the furthest from it first."""
    return f"""
WITH found AS (SELECT cell, rank, any_value(host) AS host, count(*) AS samples, quantile_cont(time_ns, 0.5) AS p50_ns
               FROM samples {_where(run)} GROUP BY cell, rank),
     beside AS (SELECT *, p50_ns / nullif(median(p50_ns) OVER (PARTITION BY cell), 0) AS ratio FROM found)
SELECT {_CELL}, rank, host, samples, p50_ns, ratio
FROM beside JOIN {_DESCRIBED} USING (cell) ORDER BY abs(ratio - 1) DESC, {_ORDER}, rank"""


def stragglers(run: RunId | None = None) -> str:
    """Ranks by how late they come: how often the last of their iteration, median lateness, over all cells; the worst first.

    Lateness is `arrival_ns`. expected: share of last places that a rank has by chance. Of samples without arrivals nothing is told.
    """
    return f"""
WITH arrived AS (SELECT run_id, cell, iteration, rank, host, arrival_ns FROM samples {_where(run, "arrival_ns IS NOT NULL")}),
     lasts AS (SELECT arg_max(rank, arrival_ns) AS rank FROM arrived GROUP BY run_id, cell, iteration),
     counted AS (SELECT rank, count(*) AS last_times, count(*) / (SELECT count(*) FROM lasts) AS last_share FROM lasts GROUP BY rank),
     found AS (SELECT rank, any_value(host) AS host, count(*) AS samples, quantile_cont(arrival_ns, [0.5, 0.99]) AS q FROM arrived GROUP BY rank)
SELECT rank, host, samples, q[1] AS p50_arrival_ns, q[2] AS p99_arrival_ns, coalesce(last_times, 0) AS last_times,
       coalesce(last_share, 0) AS last_share, 1 / count(*) OVER () AS expected
FROM found LEFT JOIN counted USING (rank) ORDER BY last_share DESC, p50_arrival_ns DESC, rank"""


def compare_runs(a: RunId, b: RunId) -> str:
    """Medians of the cells that two runs share, and the time of b over that of a; the slowest first. `busbw compare` adds certainty."""
    return f"""
WITH found AS (SELECT run_id, cell, count(*) AS samples, quantile_cont(time_ns, 0.5) AS p50_ns
               FROM samples WHERE run_id IN ({_literal(a)}, {_literal(b)}) GROUP BY run_id, cell)
SELECT {_CELL}, a.samples AS a_samples, b.samples AS b_samples, a.p50_ns AS a_ns, b.p50_ns AS b_ns, b.p50_ns / nullif(a.p50_ns, 0) AS ratio
FROM (FROM found WHERE run_id = {_literal(a)}) a JOIN (FROM found WHERE run_id = {_literal(b)}) b USING (cell)
JOIN {_DESCRIBED} USING (cell) ORDER BY ratio DESC, {_ORDER}"""


def history(days: float = 30.0) -> str:
    """Median of each cell in each run of the last days before the newest run, in the order of time."""
    if not days > 0:
        raise InputError(f"a history of {days:g} days holds nothing. Give a number above 0.")
    return f"""
WITH dated AS (SELECT DISTINCT run_id, path, created_ns FROM runs),
     wanted AS (FROM dated WHERE created_ns >= (SELECT max(created_ns) FROM dated) - {days * 86400e9:.0f}),
     found AS (SELECT run_id, cell, count(*) AS samples, quantile_cont(time_ns, 0.5) AS p50_ns
               FROM samples WHERE run_id IN (SELECT run_id FROM wanted) GROUP BY run_id, cell)
SELECT {_CELL}, run_id, path AS run, created_ns, samples, p50_ns
FROM found JOIN wanted USING (run_id) JOIN {_DESCRIBED} USING (cell) ORDER BY {_ORDER}, created_ns, run_id"""


STANDARD: Mapping[str, Callable[..., str]] = {
    "latest": latest,
    "percentiles": cell_percentiles,
    "rank-medians": rank_medians,
    "stragglers": stragglers,
    "compare": compare_runs,
    "history": history,
}
"""By the name on the command line."""

RUNS_TAKEN: Mapping[str, tuple[int, int]] = {
    "latest": (0, 0),
    "percentiles": (0, 1),
    "rank-medians": (0, 1),
    "stragglers": (0, 1),
    "compare": (2, 2),
    "history": (0, 0),
}
"""How many runs each may be asked of, least and most."""


def _where(run: RunId | None, condition: str = "") -> str:
    said = [condition] if condition else []
    if run is not None:
        said.append(f"run_id = {_literal(run)}")
    return f"WHERE {' AND '.join(said)}" if said else ""


def _literal(run: RunId) -> str:
    if not RUN_ID.fullmatch(run):
        raise InputError(f"{run!r} is no run id: 32 hexadecimal digits, as `SELECT run_id, path FROM runs` lists them.")
    return f"'{run}'"
