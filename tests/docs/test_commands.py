"""What README and docs show is what the command does.

In a ```console block `$ busbw ...` is run, on the bundled inputs sick/ and healthy/, one folder a page. Each line shown below it must be a
line of its output (`...` stands for any lines, or for the rest of one), and `# status N` tells its exit status; 0 if nothing is told.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SLOW = {"case-training.md": ("busbw simulate ", "busbw search ", "busbw predict ")}
"""Commands of pages that take seconds each: run where BUSBW_SLOW_TESTS is ON, as in .ci/full."""
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@dataclass
class Command:
    line: str
    status: int = 0
    shown: list[str] = field(default_factory=list)


def commands(text: str) -> Iterator[Command]:
    for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = block.splitlines()
        found: list[Command] = []
        for line in lines:
            # What the demo prints may itself show a command.
            if line.startswith("$ ") and not (found and found[-1].line == "busbw demo"):
                found.append(Command(line[2:]))
            elif told := re.fullmatch(r"# status (\d+)", line):
                found[-1].status = int(told[1])
            elif line.strip() and line.strip() != "...":
                found[-1].shown.append(line.strip())
        yield from found


def test_a_block_is_taken_apart_into_commands_output_and_status():
    text = "```console\n$ busbw a\none\n...\n$ busbw b | wc\n# status 2\n```\n"
    assert list(commands(text)) == [Command("busbw a", 0, ["one"]), Command("busbw b | wc", 2, [])]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```console" in page.read_text()], ids=lambda page: page.name
)
def test_commands_do_what_the_page_shows(page: Path, tmp_path: Path):
    with as_file(files("busbw.cli") / "demo_inputs") as inputs:
        shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "COLUMNS": "200",
    }
    slow = SLOW.get(page.name, ()) if os.environ.get("BUSBW_SLOW_TESTS") != "ON" else ()
    for command in commands(page.read_text()):
        if slow and command.line.startswith(slow):
            continue
        done = subprocess.run(
            ["sh", "-c", command.line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        printed = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        assert done.returncode == command.status, f"$ {command.line}\n{done.stdout}{done.stderr}"
        missing = [line for line in command.shown if not any(matches(line, other) for other in printed)]
        assert not missing, f"$ {command.line}\nshown, not printed: {missing}\nprinted:\n{done.stdout}{done.stderr}"


def matches(shown: str, printed: str) -> bool:
    return printed.startswith(shown.removesuffix("...").rstrip()) if shown.endswith("...") else printed == shown
