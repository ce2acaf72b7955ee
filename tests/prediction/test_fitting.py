"""Fitting finds what made the data."""

from __future__ import annotations

import json
import math

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
    predicted_parts,
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


def test_one_campaign_tells_less_of_a_class_than_many():
    """A site lies apart from its class by s, and so does each campaign: from the mean of n it lies sqrt(1 + 1/n) s apart."""
    truth = priors().figures("hopper", "infiniband")
    few, many = (fit([curve("all_reduce", truth, str(n)) for n in range(count)]) for count in (1, 8))
    assert (few.seen_gpus, many.seen_gpus) == ({"hopper": 1}, {"hopper": 8})
    found = predicted_parts(curve("all_reduce", truth, "new"), many)
    one, all_of_them = (c.shares(WHERE, found, True)["links"][-1] for c in (few, many))
    assert one / all_of_them == pytest.approx((2 / (1 + 1 / 8)) ** 0.5)


def test_hardware_that_nobody_measured_has_errors_of_its_own():
    """Ten campaigns err by 5 %, ten of unseen hardware by 50 %: each kind's interval is as wide as its own errors."""
    ten = np.ones(10)
    errors = [
        Errors(f"{seen}{n}", ten, ten * size * (n / 4.5 - 1), ten * 0.0, {"row": ten}, seen)
        for seen, size in ((True, 0.05), (False, 0.5))
        for n in range(10)
    ]
    found = with_deviations(fit([curve("all_reduce", priors().figures("hopper", "infiniband"), "a")]), errors)
    seen, unseen = (found.spreads[key].high * found.components["row"] for key in ("wire", "wire, unseen"))
    assert 0.03 < seen <= 0.0501
    assert 0.3 < unseen <= 0.501


def test_a_calibration_of_schema_2_is_read(tmp_path):
    """It listed classes that two campaigns or more had measured."""
    file = tmp_path / "old.json"
    file.write_text(
        json.dumps(to_json(priors()) | {"schema": 2, "seen_gpus": ["hopper"], "seen_networks": ["hopper/efa"]})
    )
    found = read_calibration(file)
    assert found.seen_gpus == {"hopper": 2}
    assert found.has_seen("hopper", "efa")


def test_schema_2_had_one_class_for_both_generations_of_efa(tmp_path):
    """A p4d does not fall from what was fitted to EFA to the common value, of faster networks, because the class was split later."""
    told = to_json(priors()) | {"schema": 2, "seen_gpus": ["ampere"], "seen_networks": ["ampere/efa"]}
    for parameter in told["parameters"].values():
        parameter["classes"].pop("efa-v1", None)
    told["parameters"]["network_step_s"]["classes"]["efa"] = 5e-5
    file = tmp_path / "old.json"
    file.write_text(json.dumps(told))
    found = read_calibration(file)
    assert found.figures("ampere", "efa-v1")["network_step_s"] == 5e-5
    assert found.has_seen("ampere", "efa-v1")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("components", "launch"), -1.0),
        (("components", "row"), math.inf),
        (("spreads", "wire"), {"low": 1.0, "high": -1.0, "rows": 9}),
        (("spreads", "wire"), {"low": -1.0, "high": 1.0, "rows": math.inf}),
        (("parameters", "launch_s", "uncertainty"), math.nan),
        (("parameters", "launch_s", "class_uncertainty"), {"hopper": -1.0}),
    ],
)
def test_an_interval_that_holds_nothing_is_refused(tmp_path, place, value):
    """Each of these would print low over high, nan or infinity beside a time."""
    told = to_json(priors())
    inner = told
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(told))
    with pytest.raises(InputError, match="no calibration"):
        read_calibration(file)


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
    errors = [Errors(str(n), one, one * (n / 59 - 0.5) * 0.6, one * 0.0, {"links": one, "row": one}) for n in range(60)]
    calibration = with_deviations(fit([curve("all_reduce", priors().figures("hopper", "infiniband"), "a")]), errors)
    deviation = np.hypot(calibration.components["links"], calibration.components["row"])
    spread = calibration.spreads["wire"]
    assert spread.low * deviation == pytest.approx(-0.24, abs=0.02)
    assert spread.high * deviation == pytest.approx(0.24, abs=0.02)
