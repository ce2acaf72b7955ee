"""Names of collectives as tools write them, and the factor between algorithm and bus bandwidth."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives import COLLECTIVES, bus_factor, collective_named

RANKS = st.integers(2, 4096)
MOVING = [name for name in COLLECTIVES if name != "barrier"]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_spelling_of_a_collective_is_one_word(name: str):
    """NCCL writes AllReduce, nccl-tests alltoall_perf, PyTorch ALLREDUCE and _all_gather, command lines all-reduce, RCCL tests ..._perf_mpi."""
    words = name.split("_")
    spellings = [
        name,
        name.upper(),
        "-".join(words),
        "".join(words),
        "".join(word.title() for word in words),
        "".join(words).upper(),
    ]
    programs = [f"{''.join(words)}_perf", f"{name}_perf", f"{name}_perf_mpi", f"./build/{name}_perf", f" {name} "]
    assert {collective_named(spelling) for spelling in spellings + programs} == {name}


@pytest.mark.parametrize(
    "word", [None, "", "GEMM", "all", "reduce_all", "AllReduceSum", "_perf", "/", "allreduce_perf.txt"]
)
def test_another_word_is_no_collective(word: str | None):
    assert collective_named(word) is None


@given(st.text(max_size=30))
def test_a_name_is_one_of_ours_or_none(word: str):
    assert collective_named(word) in (None, *COLLECTIVES)


@given(RANKS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks: int):
    """Each moves (n-1)/n of the buffer through every link; together 2(n-1)/n. NVIDIA/nccl-tests, doc/PERFORMANCE.md."""
    whole = bus_factor("reduce_scatter", ranks) + bus_factor("all_gather", ranks)
    assert bus_factor("all_reduce", ranks) == pytest.approx(whole)
    assert whole == pytest.approx(float(2 * Fraction(ranks - 1, ranks)))


@given(RANKS, st.sampled_from(["all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"]))
def test_a_rank_keeps_its_own_share(ranks: int, collective: str):
    """Of n shares of the buffer n - 1 travel."""
    assert bus_factor(collective, ranks) == pytest.approx(float(Fraction(ranks - 1, ranks)))


@given(RANKS, st.sampled_from(["broadcast", "reduce", "send_recv"]))
def test_what_goes_one_way_passes_every_link_once(ranks: int, collective: str):
    assert bus_factor(collective, ranks) == 1


@given(st.sampled_from(MOVING), st.integers(2, 4095))
def test_more_ranks_never_lower_the_factor(collective: str, ranks: int):
    assert bus_factor(collective, ranks) <= bus_factor(collective, ranks + 1)


@pytest.mark.parametrize("collective", [name for name in MOVING if name not in ("broadcast", "reduce", "send_recv")])
def test_one_rank_moves_nothing(collective: str):
    assert bus_factor(collective, 1) == 0


@pytest.mark.parametrize("collective", ["barrier", "allreduce", ""])
def test_a_collective_without_bus_bandwidth_is_refused_by_name(collective: str):
    with pytest.raises(ValueError, match=f"'{collective}' has no bus bandwidth; collectives are all_reduce, "):
        bus_factor(collective, 8)


@pytest.mark.parametrize("ranks", [0, -1])
def test_a_communicator_has_a_rank(ranks: int):
    with pytest.raises(ValueError, match=f"at least one rank, not {ranks}"):
        bus_factor("all_reduce", ranks)
