"""What results show in a notebook."""

from __future__ import annotations

from busbw.accuracy import Score
from busbw.diagnosis.findings import Diagnosis, Finding, LineRef
from busbw.notebooks import MOST_ROWS, html_table


def test_text_is_shown_as_text():
    assert "&lt;script&gt;" in html_table(["<b>"], [["<script>"]], "a & b")
    assert "<script>" not in html_table(["<b>"], [["<script>"]], "a & b")


def test_what_is_not_shown_is_counted():
    shown = html_table(["n"], [[str(n)] for n in range(MOST_ROWS + 5)])
    assert shown.count("<tr>") == MOST_ROWS + 1
    assert "<caption>5 more rows</caption>" in shown


def test_a_diagnosis_shows_its_findings_and_a_score_its_tables():
    finding = Finding("gpu-ecc", 0.5, "fatal", "memory & more", [LineRef("log", 1, 0, "0" * 64)], "replace it")
    shown = Diagnosis("faulty", [finding], [], [], [], [])._repr_html_()
    assert "verdict: faulty" in shown
    assert "<td>gpu-ecc</td><td>50%</td><td>fatal</td><td>memory &amp; more</td>" in shown
    assert "median over tables - %" in Score(())._repr_html_()
