"""The table of NCCL's environment variables."""

from __future__ import annotations

import re

import pytest

from busbw.nccl import find_variable, load_variables


def test_every_name_is_one_of_nccl_or_of_a_tool_beside_it_and_stands_once():
    table = load_variables()
    assert table
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", name) and name == variable.name for name, variable in table.items())
    assert sum(name.startswith("NCCL_") for name in table) > len(table) / 2


def test_every_variable_says_what_it_means():
    assert all(variable.meaning.strip() for variable in load_variables().values())


@pytest.mark.parametrize(
    ("name", "default"),
    [("NCCL_IB_TIMEOUT", "20"), ("NCCL_IB_RETRY_CNT", "7"), ("NCCL_ALGO", None), ("NCCL_PROTO", None)],
)
def test_defaults_are_those_of_the_source(name: str, default: str | None):
    """NVIDIA/nccl 2.30.7: NCCL_PARAM of src/transport/net_ib (time-out 20, retries 7); the choice of algorithm is NCCL's own."""
    variable = find_variable(name)
    assert variable is not None
    assert variable.default == default


def test_a_time_out_of_the_default_is_four_seconds():
    """4.096 us x 2^20 (InfiniBand specification, local ack time-out)."""
    variable = find_variable("NCCL_IB_TIMEOUT")
    assert variable is not None and variable.default is not None
    assert 4.096e-6 * 2 ** int(variable.default) == pytest.approx(4.29, abs=0.01)


def test_variables_that_nccl_no_longer_reads_are_told_apart():
    idle = {name for name, variable in load_variables().items() if not variable.effective}
    assert "NCCL_TREE_THRESHOLD" in idle
    assert "NCCL_ALGO" not in idle


@pytest.mark.parametrize("name", ["", "NCCL_NO_SUCH_THING", "nccl_algo", "NCCL_ALGO "])
def test_an_unknown_name_is_none(name: str):
    assert find_variable(name) is None
