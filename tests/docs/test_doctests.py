"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import busbw

MODULES = sorted(m.name for m in pkgutil.walk_packages(busbw.__path__, "busbw.") if m.name != "busbw.__main__")


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
