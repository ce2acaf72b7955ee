"""Laws of all rules: each is tested from both sides, says when it fires, and names kinds of the taxonomy with lines and a remedy."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from busbw.diagnosis import Facts, Finding, LineRef, kinds
from busbw.diagnosis.rules import RULES

from .told import RULE, Case

LINE = LineRef("log.txt", 1, 0, "0" * 64)
CASES: list[Case] = [
    case
    for file in sorted(Path(__file__).parent.glob("test_rules_*.py"))
    for case in importlib.import_module(f".{file.stem}", __package__).CASES
]


def test_every_file_of_rules_has_a_file_of_tests():
    modules = {rule.__module__.rsplit(".", 1)[-1] for rule in RULES}
    assert modules == {file.stem.removeprefix("test_rules_") for file in Path(__file__).parent.glob("test_rules_*.py")}


def test_rules_are_told_apart_by_their_names():
    assert len(RULE) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_has_a_text_that_fires_it_and_a_near_miss(rule):
    mine = [case for case in CASES if case.rule == rule.__name__]
    assert any(case.kind is not None for case in mine), "no text fires it"
    assert any(case.kind is None for case in mine), "it has no near miss"


def test_no_case_names_a_rule_that_is_gone():
    assert {case.rule for case in CASES} <= set(RULE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_says_when_it_fires_and_when_it_must_not(rule):
    """Its docstring is what the user reads about it."""
    first, _, rest = (rule.__doc__ or "").partition("\n")
    assert first.endswith(".")
    assert "Fires " in rest
    assert re.search(r"\b[Ss]ilent\b", rest)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_says_nothing_of_nothing(rule):
    assert list(rule(Facts())) == []


def test_a_finding_has_a_known_kind_a_probability_and_lines():
    def finding(kind: str = "gpu-ecc", confidence: float = 0.5, lines: tuple[LineRef, ...] = (LINE,)) -> Finding:
        return Finding(kind, confidence, "fatal", "summary", lines, "remedy", rule="some_rule")

    assert finding().family == "gpu-fault" and finding().layer == "gpu"
    with pytest.raises(ValueError, match=r"some_rule: 'gpu-broken' is no kind of kinds\.json"):
        finding(kind="gpu-broken")
    for confidence in (0.0, -0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match=r"some_rule: confidence .* is not in \(0, 1\]"):
            finding(confidence=confidence)
    with pytest.raises(ValueError, match="some_rule: a finding without evidence lines does not exist"):
        finding(lines=())


def test_kinds_have_families_and_layers():
    assert {kind.layer for kind in kinds().values()} == {
        "application", "container", "fabric", "gpu", "host", "nic", "none", "nvlink", "pcie", "software", "virtualisation",
    }  # fmt: skip
    assert all(slug == kind.kind and kind.family and kind.meaning.endswith(".") for slug, kind in kinds().items())
