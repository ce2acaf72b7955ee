"""Fitting finds what made the data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.prediction import (
    Curve,
    Errors,
    Situation,
    fit,
    movements,
    moves_of,
    parts,
    predicted,
    priors,
    read_calibration,
    with_deviations,
)
from busbw.prediction.calibration import to_json

WHERE = Situation(8, 1, "hopper", 450e9, "switch", "infiniband", 0.0, 0, False, False, "NCCL")


def curve(collective: str, figures: dict[str, float], campaign: str) -> Curve:
    sizes = np.array([1 << place for place in range(4, 34, 3)], np.float64)
    moves = tuple(movements(collective, WHERE))
    took = parts(moves_of(moves, WHERE, sizes), figures).total_s.reshape(len(sizes), len(moves)).min(axis=1)
    return Curve(f"{campaign}-{collective}", campaign, WHERE, collective, sizes, took, moves)


def test_a_fit_to_made_times_predicts_them():
    """Times of a machine whose links reach 0.7 and whose launch takes 9 us, in place of the priors' 0.78 and 6.5 us."""
    truth = priors().figures("hopper", "infiniband") | {"ring_share": 0.7, "p2p_share": 0.6, "launch_s": 9e-6}
    curves = [curve(c, truth, c) for c in ("all_reduce", "all_gather", "all_to_all")]
    found = fit(curves)
    for made in curves:
        assert predicted(made, found) == pytest.approx(made.time_s, rel=0.05)
    assert found.figures("hopper", "infiniband")["ring_share"] == pytest.approx(0.7, rel=0.05)
    assert found.has_seen("hopper", None)
    assert not found.has_seen("hopper", "infiniband")


def test_nothing_to_fit_is_an_error():
    with pytest.raises(InputError, match="nothing to fit"):
        fit([])


def test_a_calibration_survives_its_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(to_json(priors())))
    again = read_calibration(path)
    assert again.figures("hopper", "efa") == pytest.approx(priors().figures("hopper", "efa"), rel=1e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no calibration"),
        ("[" * 100_000, "no calibration"),
        ('{"schema": 2, "parameters": {"launch_s": {"value": 0, "source": ""}}}', "no positive number"),
        ('{"schema": 2, "parameters": {"launch_s": {"value": 1e-6, "source": "me"}}}', "lacks"),
    ],
)
def test_a_damaged_calibration_is_refused_with_the_file_and_the_remedy(tmp_path, text, words):
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        read_calibration(path)
    assert str(path) in str(caught.value)
    assert "busbw calibrate" in str(caught.value)


def test_one_sites_slow_launch_does_not_become_its_classes():
    """Four sites launch in 5 us and a fifth in 40 us. The mean of logarithms would rise by 8^(1/5) = 1.52; the class's by less than half."""
    truth = priors().figures("hopper", "infiniband") | {"launch_s": 5e-6}
    alike = [curve("all_reduce", truth, f"site {place}") for place in range(4)]
    slow = curve("all_reduce", truth | {"launch_s": 40e-6}, "slow")
    without, beside = (fit(curves).figures("hopper", "infiniband")["launch_s"] for curves in (alike, [*alike, slow]))
    assert 1 <= beside / without < 1.25


def test_what_ran_is_fitted_even_where_another_way_would_be_faster():
    """Ring Simple at 1 KiB is slow; told that it ran, the fit keeps the figures that made the time."""
    truth = priors().figures("hopper", "infiniband")
    moves = tuple(movements("all_reduce", WHERE))
    ring = next(p for p, m in enumerate(moves) if (m.algorithm, m.protocol) == ("Ring", "Simple"))
    sizes = np.array([1024.0, 4096.0, 16384.0])
    took = parts(moves_of(moves, WHERE, sizes), truth).total_s.reshape(3, len(moves))[:, ring]
    made = Curve("a", "a", WHERE, "all_reduce", sizes, took, moves, pick=np.full(3, ring))
    found = fit([made])
    assert predicted(made, found) == pytest.approx(took, rel=0.01)
    assert found.figures("hopper", "infiniband")["launch_s"] == pytest.approx(truth["launch_s"], rel=0.05)


def test_the_interval_of_errors_on_campaigns_left_out_holds_four_fifths_of_them():
    """60 campaigns of one row each, errors spread evenly over -0.3 to 0.3: 80 % lie between -0.24 and 0.24."""
    one = np.ones(1)
    errors = [
        Errors(str(n), one * (1 << 30), one * (n / 59 - 0.5) * 0.6, one * 0.0, {"links": one, "row": one})
        for n in range(60)
    ]
    calibration = with_deviations(fit([curve("all_reduce", priors().figures("hopper", "infiniband"), "a")]), errors)
    deviation = np.hypot(calibration.components["links"], calibration.components["row"])
    spread = calibration.spreads["large"]
    assert spread.low * deviation == pytest.approx(-0.24, abs=0.02)
    assert spread.high * deviation == pytest.approx(0.24, abs=0.02)
