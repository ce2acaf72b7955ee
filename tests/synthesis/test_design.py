"""Designs: candidates from library and synthesis, ranked; none beats its bound."""

from __future__ import annotations

import pytest
from tests.collectives.graphs import grid, rails, star

from busbw.collectives import violations
from busbw.synthesis import DESIGNED, design

ALPHA = 5e-6


@pytest.mark.parametrize("collective", DESIGNED)
@pytest.mark.parametrize("objective", ["latency", "throughput", "at-size"])
def test_no_candidate_beats_the_bound_and_all_are_ranked(collective: str, objective: str):
    """2 nodes of 4; the bound is a bound for whatever is there."""
    found = design(rails(2, 4), collective, 1 << 20, alpha_s=ALPHA, objective=objective, gpus_per_node=4)
    times = [candidate.time_s for candidate in found.candidates]
    assert times == sorted(times)
    assert times[0] >= found.bound_s * (1 - 1e-9)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_the_winner_for_throughput_is_near_the_bound(collective: str):
    """On rails synthesis gets within 2 %, where the best library schedule of a flat ring is far off."""
    found = design(rails(8), collective, 1, alpha_s=ALPHA, objective="throughput", gpus_per_node=8)
    assert found.gap(found.candidates[0]) <= 0.02


def test_every_candidate_does_what_the_collective_says():
    """By provenance, with the slices that were best."""
    for candidate in design(star(4, 10**9), "all_reduce", 1 << 20, alpha_s=ALPHA).candidates:
        assert violations(candidate.bind()) == []


def test_a_ring_on_a_star_takes_what_alpha_and_beta_say():
    """8 ranks with ports of 300e9: 7 steps of alpha and an eighth of the size over one port."""
    found = design(star(8, 300 * 10**9), "all_gather", 8 * 300_000, alpha_s=ALPHA)
    (ring,) = (candidate for candidate in found.candidates if candidate.name == "ring_all_gather")
    assert ring.time_s == pytest.approx(7 * (ALPHA + 1e-6))


def test_ranks_without_switches_are_matched_greedily_too():
    """A torus."""
    found = design(grid((3, 3), 10**9, closed=True), "all_gather", 9 << 20, alpha_s=ALPHA)
    assert {"forest", "greedy", "library"} <= {candidate.origin for candidate in found.candidates}


def test_what_needs_reducing_switches_is_left_out_by_name():
    """NVLS and SHARP."""
    left = dict(design(star(4, 1), "all_reduce", 8, alpha_s=ALPHA).left_out)
    assert "switches" in left["nvls_all_reduce"]
    assert "switches" in left["sharp_all_reduce"]


def test_wrong_words_are_refused():
    """With what there is."""
    with pytest.raises(ValueError, match="barrier"):
        design(star(4, 1), "barrier", 8, alpha_s=ALPHA)
    with pytest.raises(ValueError, match="at-size"):
        design(star(4, 1), "all_reduce", 8, alpha_s=ALPHA, objective="beauty")
