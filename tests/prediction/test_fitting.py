"""Fitting finds what made the data."""

from __future__ import annotations

import json

import numpy as np
import pytest

from busbw.errors import InputError
from busbw.prediction import Curve, Situation, fit, movements, moves_of, parts, predicted, priors, read_calibration
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
