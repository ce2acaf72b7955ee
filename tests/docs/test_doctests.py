"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import busbw

MODULES = sorted(m.name for m in pkgutil.walk_packages(busbw.__path__, "busbw.") if m.name != "busbw.__main__")
EXTRAS = ("mpi4py", "torch")
"""What back ends of `busbw run` are modules for, which import it at their head."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        pytest.skip(f"{error.name} is not installed")
    assert doctest.testmod(module).failed == 0
