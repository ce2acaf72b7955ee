"""Sphinx: MyST pages, tables made from the package itself (`_ext/generated.py`), docstrings as reference."""

import sys
from pathlib import Path

import busbw

sys.path[:0] = [str(Path(__file__).parent / "_ext"), str(Path(__file__).parents[1])]

project = "busbw"
author = "The busbw authors"
copyright = "The busbw authors"
version = release = busbw.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"busbw {release}"
templates_path: list[str] = []
html_static_path: list[str] = []
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": False}
highlight_language = "none"
# Pages of the repository beside docs/ are linked as files.
suppress_warnings = ["myst.xref_missing"]
