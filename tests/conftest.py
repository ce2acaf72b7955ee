"""What all tests share: golden files, and how many examples property tests try."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Few examples, the same ones every time: the gate must not be green by luck. `--hypothesis-profile=full` tries many and new ones.
settings.register_profile(
    "ci", max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "full", max_examples=1000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

# A shell without job control starts `pytest &` with Ctrl-C ignored, and so would be every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what golden files are compared with, instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(name, text)` compares text with the file `golden/<name>` beside the test; `pytest --update-golden` writes that file."""
    folder = request.path.parent / "golden"

    def compare(name: str, text: str) -> None:
        check_golden(folder / name, text, update=request.config.getoption("--update-golden"))

    return compare


def check_golden(file: Path, text: str, *, update: bool) -> None:
    """Fails with the difference if `file` holds another text; writes it if `update`."""
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    if not file.exists():
        pytest.fail(f"{file} does not exist; `pytest --update-golden` writes it")
    expected = file.read_text(encoding="utf-8")
    if text != expected:
        difference = difflib.unified_diff(expected.splitlines(True), text.splitlines(True), file.name, "now", n=2)
        pytest.fail(
            f"{file.name} differs; if that is meant, run `pytest --update-golden` and review the difference:\n{''.join(difference)}"
        )
