"""The page about schedules is true."""

from __future__ import annotations

import re
from pathlib import Path

from busbw.collectives import violations

PAGE = Path(__file__).parents[2] / "docs" / "collectives.md"


def test_the_examples_of_the_page_run_and_say_what_they_say(tmp_path: Path):
    """Written to a file, because a schedule remembers its lines."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    file = tmp_path / "page.py"
    file.write_text(code)
    names: dict[str, object] = {}
    exec(compile(code, str(file), "exec"), names)
    assert violations(names["bound"]) == []
    assert names["prove"](names["ring"].bind(131_072)).holds
