"""Predicted curves drawn: what stands in the SVG, for a page and as a file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from busbw.hardware import find_cluster
from busbw.prediction import predict
from busbw.reports import MeasuredPoint, prediction_svg, standalone

RESULT = predict(find_cluster("dgx-h100", 2)[0], "all_reduce", [8 << place for place in range(0, 31, 2)])


def test_the_drawing_names_line_interval_and_what_runs():
    svg = prediction_svg(RESULT, title="all-reduce")
    assert "80 % of healthy measurements" in svg
    assert "predicted" in svg
    assert {f"{a} {p}" for a, p in zip(RESULT.algorithm, RESULT.protocol, strict=True)} & set(
        re.findall(r">(\w+ \w+)<", svg)
    )
    assert "measured</text>" not in svg


def test_measured_points_and_those_that_are_slow_are_counted_in_words():
    points = [MeasuredPoint(1 << 20, 10e9), MeasuredPoint(1 << 30, 20e9, is_slow=True), MeasuredPoint(0, 1e9)]
    svg = prediction_svg(RESULT, points)
    assert "2 measured points, 1 of them slower than the interval." in svg


def test_a_file_of_its_own_has_a_name_space_a_paper_and_no_variables():
    svg = standalone(prediction_svg(RESULT))
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("width", "").endswith("pt")
    assert "var(" not in svg


def test_the_same_result_gives_the_same_bytes():
    assert prediction_svg(RESULT) == prediction_svg(RESULT)


@pytest.mark.parametrize("sizes", [[1 << 20], [8, 8], [1, 1 << 50]])
def test_any_sizes_can_be_drawn(sizes):
    assert "<svg" in prediction_svg(predict(find_cluster("dgx-a100", 1)[0], "all_gather", sizes))
