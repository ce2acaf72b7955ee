"""Planted culprits are named and not those around them; noise is nobody's fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.statistics.culprits import culprits

HOSTS, RAILS = 16, 4


def table(seed, kind, host=3, rail=1):
    """Rates of all ordered pairs of 16 hosts on 4 rails, 3 % noise, one suspect at 0.9; and who is involved in each."""
    random = np.random.default_rng(seed)
    src, dst = np.array([(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]).T
    rails = np.repeat(np.arange(RAILS), src.size)
    src, dst = np.tile(src, RAILS), np.tile(dst, RAILS)
    other = (host + 5) % HOSTS
    slow = {
        "host": (src == host) | (dst == host),
        "NIC": ((src == host) | (dst == host)) & (rails == rail),
        "rail": rails == rail,
        "sending": (src == host) & (rails == rail),
        "pair": np.minimum(src, dst) * HOSTS + np.maximum(src, dst) == min(host, other) * HOSTS + max(host, other),
        "nobody": np.zeros(src.size, bool),
    }
    rates = 50e9 * np.exp(0.03 * random.standard_normal(src.size)) * np.where(slow[kind], 0.9, 1.0)
    suspects = {
        "host": [src, dst],
        "NIC": [src * RAILS + rails, dst * RAILS + rails],
        "rail": [rails],
        "sending": [src * RAILS + rails],
        "receiving": [dst * RAILS + rails],
        "pair": [np.minimum(src, dst) * HOSTS + np.maximum(src, dst)],
    }
    named = {"host": host, "NIC": host * RAILS + rail, "rail": rail, "sending": host * RAILS + rail}
    return rates, suspects, named.get(kind, min(host, other) * HOSTS + max(host, other))


@given(
    seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["host", "NIC", "rail", "sending", "pair"]),
    host=st.integers(0, HOSTS - 1), rail=st.integers(0, RAILS - 1),
)  # fmt: skip
def test_a_tenth_less_is_blamed_on_the_smallest_suspect_that_explains_it(seed, kind, host, rail):
    """A pair has 8 cells: 0.105 / 0.03 * sqrt(8) is ten deviations; all others have more."""
    rates, suspects, planted = table(seed, kind, host, rail)
    first = culprits(rates, suspects)[0]
    assert (first.kind, first.suspect) == (kind, planted)
    assert first.ratio == pytest.approx(0.9, abs=0.04)


def test_noise_is_nobodys_fault():
    """60 tables of 960 pairs with several hundred suspects each; at a thousandth a table one alarm is likely to be the most."""
    assert sum(bool(culprits(*table(seed, "nobody")[:2])) for seed in range(60)) <= 1


def test_two_culprits_are_both_named():
    """Host 3 and rail 0: different cells, one after the other."""
    rates, suspects, _ = table(1, "host")
    rates = np.where(suspects["rail"][0] == 0, rates * 0.8, rates)
    assert {(c.kind, c.suspect) for c in culprits(rates, suspects)} == {("host", 3), ("rail", 0)}


def test_what_was_measured_at_one_moment_is_one_measurement():
    """28 pairs, both ways at once, 0.3 % noise; one moment was disturbed by 6 %. Its two cells are 28 deviations off, and say nothing of the path; nor of its hosts."""
    random = np.random.default_rng(3)
    src, dst = np.array([(a, b) for a in range(8) for b in range(8) if a != b]).T
    pair = np.minimum(src, dst) * 8 + np.maximum(src, dst)
    rates = 5.8e6 * np.exp(0.003 * random.standard_normal(src.size)) * np.where(pair == 13, 0.94, 1.0)
    suspects = {"host": [src, dst], "sending": [src], "receiving": [dst], "pair": [pair]}
    assert culprits(rates, suspects, together=pair) == []
    slow = rates * np.where((src == 2) | (dst == 2), 0.94, 1.0)  # seven moments: beyond chance
    assert [(one.kind, one.suspect) for one in culprits(slow, suspects, together=pair)] == [("host", 2)]


def test_hosts_that_differ_by_nature_are_not_at_fault():
    """Every host has a rate of its own, 4 % apart: none is slow beyond the spread of its peers."""
    rates, suspects, _ = table(2, "nobody")
    own = np.exp(0.04 * np.random.default_rng(5).standard_normal(HOSTS))
    found = culprits(rates * own[suspects["host"][0]] * own[suspects["host"][1]], {"host": suspects["host"]})
    assert found == []


@pytest.mark.parametrize("rates", [[1.0, 0.0, 2.0, 3.0], [1.0, float("nan"), 1.0, 1.0], [[1.0]]])
def test_what_is_no_rate_is_refused(rates):
    with pytest.raises(ValueError, match="positive numbers"):
        culprits(rates, {"host": [np.zeros(4, np.int64)]})


def test_columns_must_fit():
    with pytest.raises(ValueError, match="another length"):
        culprits([1.0] * 5, {"host": [np.zeros(4, np.int64)]})
