"""The figures of designing: one file a family."""

from benchmarks.design import bounds, forests, greedy, library, plans

__all__ = ["BENCHMARKS"]

BENCHMARKS = tuple(
    sorted(
        (
            *bounds.BENCHMARKS,
            *forests.BENCHMARKS,
            *greedy.BENCHMARKS,
            *library.BENCHMARKS,
            *plans.BENCHMARKS,
        ),
        key=lambda benchmark: int(benchmark.id[1:]),
    )
)
