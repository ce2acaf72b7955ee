"""Least times in rounds of one port: what is attained, and that no schedule of the library beats them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.collectives.algorithms import LIBRARY, bruck_all_gather, circulant_broadcast, radix_all_to_all
from busbw.collectives.bounds import fewest_moves, round_bound_s
from busbw.collectives.cost import Cost, cost

A, B = 2e-6, 2e-11


def one_port_s(counted: Cost, size_bytes: float) -> float:
    """A step with m messages of a rank costs m alpha."""
    total = 0.0
    for r in counted.rounds:
        for axis, load in r.step.items():
            if axis:
                busiest = max(float(load.sent.max()), float(load.received.max()))
                total += r.times * (busiest / load.message * A + busiest * size_bytes / counted.chunks * B)
    return total


@given(ranks=st.integers(2, 40), size=st.sampled_from([8, 1 << 16, 1 << 24, 1 << 32]))
@settings(max_examples=20)
def test_bruck_and_circulant_graphs_attain_them(ranks: int, size: int):
    """all_gather at every size; broadcast with the best number of blocks, within a block; all_to_all with log2 p rounds at 8 bytes."""
    bound = round_bound_s("all_gather", ranks, size, A, B)
    assert one_port_s(cost(bruck_all_gather().bind(ranks)), size) == pytest.approx(bound)
    if size <= 1 << 24:
        times = [
            one_port_s(cost(circulant_broadcast().bind(ranks, blocks=m)), size) for m in (1, 2, 3, 5, 8, 16, 32, 64)
        ]
        assert bound <= min(times) * (1 + 1e-9)
        assert min(times) <= 1.1 * round_bound_s("broadcast", ranks, size, A, B)


@given(ranks=st.integers(2, 300), radix=st.integers(2, 20))
@settings(max_examples=40)
def test_no_radix_beats_the_all_to_all_bound(ranks: int, radix: int):
    """Base 2 at powers of two sends what ceil(log2 p) rounds must."""
    counted = cost(radix_all_to_all().bind(ranks, radix=radix))
    for size in (8, 1 << 20, 1 << 30):
        assert one_port_s(counted, size) >= round_bound_s("all_to_all", ranks, size, A, B) * (1 - 1e-9)
    power = 1 << (ranks.bit_length() - 1)
    if power > 1:
        moved = cost(radix_all_to_all().bind(power, radix=2)).sent_share() * power
        assert moved == fewest_moves(power.bit_length() - 1, power)


@pytest.mark.parametrize("name", [n for n in LIBRARY if not any(w in n for w in ("nvls", "sharp", "multicast"))])
def test_no_schedule_of_the_library_beats_its_bound(name: str):
    """8 ranks in each of its shapes, from 8 bytes to 1 GiB."""
    schedule = LIBRARY[name]()
    for bound in schedule.bindings(8):
        if schedule.kind in ("barrier", "send_recv"):
            continue
        counted = cost(bound)
        for size in (8, 1 << 15, 1 << 20, 1 << 30):
            assert one_port_s(counted, size) >= round_bound_s(schedule.kind, 8, size, A, B) * (1 - 1e-9)


def test_too_few_rounds_and_unknown_collectives_are_refused():
    """1,024 ranks take 10 rounds."""
    with pytest.raises(ValueError, match="10 rounds"):
        fewest_moves(9, 1024)
    with pytest.raises(ValueError, match="barrier"):
        round_bound_s("barrier", 8, 8, A, B)
    assert round_bound_s("all_reduce", 1, 8, A, B) == 0.0
