"""The page in a browser: quiet, alone, usable by keyboard, readable at every width, in both colour schemes and on paper.

Needs Debian's `chromium` (or any Chromium that BUSBW_CHROMIUM names), Playwright to drive it, and axe-core, which the
wheel axe-playwright-python holds. Without them these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reports import bundles

from busbw.diagnosis import Explanation
from busbw.diagnosis.explain import explain
from busbw.readers import find_artefacts
from busbw.reports import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `test`)")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed (extra `test`)"
)

CHROMIUM = os.environ.get("BUSBW_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install -y chromium"),
    # asyncio inside Playwright leaves a socket to the collector at the end of a process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

JOBS: dict[str, Callable[[Path], Path]] = {
    "faulty": bundles.faulty, "healthy": bundles.healthy, "unknown": bundles.unknown, "hostile": bundles.hostile,
}  # fmt: skip
EVERY = pytest.mark.parametrize("job", JOBS)
WIDTHS = pytest.mark.parametrize("width", [400, 1600])
SCHEMES = pytest.mark.parametrize("scheme", ["light", "dark"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Explanation]]:
    """The report of every job, and what it was made of."""
    made = {}
    for name, write in JOBS.items():
        folder = write(tmp_path_factory.mktemp(name) / "job")
        artefacts, losses = find_artefacts([str(folder)])
        explanation = explain(artefacts, losses)
        report = folder.parent / "report.html"
        write_report(explanation, report, artefacts)
        made[name] = (report, explanation)
    return made


class Opened:
    """A page, with what it said and asked for since it was opened."""

    def __init__(self, page: Any, report: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(report.as_uri())


@pytest.fixture
def opened(browser: Any, reports: dict[str, tuple[Path, Explanation]]) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def open_it(job: str, width: int = 1600, scheme: str = "light", **more: Any) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
        contexts.append(context)
        return Opened(context.new_page(), reports[job][0])

    yield open_it
    for context in contexts:
        context.close()


def test_the_jobs_are_what_they_are_called(reports):
    """Else the pages below would not show what these tests look at."""
    verdicts = {job: explanation.diagnosis.verdict for job, (_, explanation) in reports.items()}
    assert verdicts == {"faulty": "faulty", "healthy": "healthy", "unknown": "unknown", "hostile": "faulty"}


def test_the_faulty_page_shows_every_kind_of_figure(opened):
    page = opened("faulty").page
    for anchor in (
        "findings",
        "failures",
        "nodes",
        "hosts",
        "measured",
        "pairs",
        "ranks",
        "cleared",
        "checked",
        "read",
    ):
        assert page.locator(f"h2#{anchor}").count() == 1, anchor
    assert page.locator("svg[role=img]").count() >= 5
    assert page.locator("svg > title").count() == page.locator("svg").count()


@EVERY
@WIDTHS
def test_the_page_is_quiet_and_asks_for_nothing_but_itself(opened, reports, job, width):
    """No error, no violation of its own policy, no dialog of a smuggled script, one request: the file."""
    it = opened(job, width)
    assert it.complaints == []
    assert it.requests == [reports[job][0].as_uri()]


@EVERY
@WIDTHS
def test_nothing_is_wider_than_the_window(opened, job, width):
    """What is wider scrolls inside its own box."""
    page = opened(job, width).page
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@EVERY
@SCHEMES
def test_axe_finds_no_violation(opened, job, scheme):
    """axe-core's rules, best practices among them; colour contrast is judged in both schemes."""
    page = opened(job, 1000, scheme).page
    told = axe.Axe().run(page).response
    assert [(v["id"], [node["target"] for node in v["nodes"]][:3]) for v in told["violations"]] == []
    assert "color-contrast" in {rule["id"] for rule in told["passes"]}


@pytest.mark.parametrize("width", [400, 1600])
def test_every_control_is_reached_and_worked_by_keyboard(opened, width):
    """Tab visits each link, button, fold and scrolling box once, in the order of the page, and each shows that it has the focus."""
    page = opened("faulty", width).page
    page.evaluate(
        "for (const [k, e] of [...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')].entries())"
        " if (e.checkVisibility({contentVisibilityAuto: true})) e.dataset.stop = k"
    )
    wanted = page.evaluate("[...document.querySelectorAll('[data-stop]')].map((e) => e.dataset.stop)")
    met = []
    for _ in wanted:
        page.keyboard.press("Tab")
        stop, outline = page.evaluate(
            "[document.activeElement.dataset.stop, getComputedStyle(document.activeElement).outlineStyle]"
        )
        met.append(stop)
        assert outline != "none", stop
    assert met == wanted


def test_a_fold_opens_by_keyboard(opened):
    page = opened("faulty").page
    fold = page.locator("details").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.get_attribute("open") is not None


def test_the_copy_button_copies_what_stands_beside_it(opened):
    it = opened("faulty", permissions=["clipboard-read", "clipboard-write"])
    code = it.page.locator("code.command").first
    button = it.page.locator("button.copy").first
    button.focus()
    it.page.keyboard.press("Enter")
    # wait_for_function would need `unsafe-eval`, which the page's policy does not grant.
    playwright.expect(it.page.locator("[role=status]")).to_have_text("copied")
    assert button.text_content() == "copied"
    assert it.page.evaluate("navigator.clipboard.readText()") == code.text_content()


def test_a_command_of_a_hostile_log_is_copied_as_it_is_shown(opened, reports):
    """One line, nothing hidden in it: what is pasted into a shell is what was read."""
    page = opened("hostile").page
    for text in page.locator("code.command").all_text_contents():
        assert text.isprintable()


def test_without_script_everything_is_there(opened, reports):
    """No buttons, all commands, and folds that still open."""
    page = opened("faulty", java_script_enabled=False).page
    assert page.locator("button").count() == 0
    assert page.locator("code.command").count() > 0
    fold = page.locator("details").first
    fold.locator("summary").click()
    assert fold.get_attribute("open") is not None


@EVERY
@pytest.mark.parametrize("script", [True, False])
def test_the_printed_page_is_unfolded_and_has_no_controls(opened, job, script):
    """Also without the script, which a viewer of mail may not run."""
    page = opened(job, java_script_enabled=script).page
    page.emulate_media(media="print")
    hidden = (
        "[...document.querySelectorAll('details > :not(summary)')].filter((e) => !e.getClientRects().length"
        " || !e.checkVisibility({contentVisibilityAuto: true})).length"
    )
    shown = "[...document.querySelectorAll('button, nav, summary')].filter((e) => e.getClientRects().length).length"
    # A page without script is asked by the driver all the same.
    assert (page.evaluate(hidden), page.evaluate(shown)) == (0, 0)


def test_the_printed_page_has_all_of_its_width_on_paper(opened):
    """Boxes that scroll on a screen would be cut."""
    page = opened("faulty", 700).page
    page.emulate_media(media="print")
    cut = page.evaluate(
        "[...document.querySelectorAll('.scroll, .scroll-x, .lines')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
        ".map((e) => e.className + ' ' + e.scrollWidth + ' ' + e.clientWidth)"
    )
    assert cut == []


def test_letters_of_drawings_stay_legible_on_a_phone(opened):
    """At 400 pixels no text of a drawing is smaller than 6.5 pt of its 8: the drawing scrolls instead."""
    page = opened("faulty", 400).page
    shares = page.evaluate(
        "[...document.querySelectorAll('svg')].map((e) => e.getBoundingClientRect().width / (e.viewBox.baseVal.width * 4 / 3))"
    )
    assert min(shares) > 0.79


@EVERY
def test_text_of_files_never_becomes_an_element(opened, job):
    """Elements are those of this package; a log adds none, no attribute that acts, no address that leads out."""
    page = opened(job).page
    assert (
        page.locator(
            "img, iframe, object, embed, link, form, base, svg script, svg image, svg a, foreignObject"
        ).count()
        == 0
    )
    assert page.locator("script").count() == 1
    assert page.locator("style").count() == 1
    assert (
        page.evaluate(
            "[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames()).filter((n) => n.startsWith('on') || n === 'style')"
        )
        == []
    )
    assert page.evaluate("[...document.querySelectorAll('a')].every((a) => a.getAttribute('href').startsWith('#'))")
    assert page.evaluate(
        "[...document.querySelectorAll('a')].every((a) => document.getElementById(a.getAttribute('href').slice(1)))"
    )
