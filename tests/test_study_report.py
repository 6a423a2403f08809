"""The page of a study, as a browser without network shows it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import study_runners

from phaseflip.study.mutant_run import ORACLES, run_item
from phaseflip.study.page import detection_plot, render_report, write_report
from phaseflip.study.results import settle

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--proxy-server=127.0.0.1:9", "--proxy-bypass-list=<-loopback>",
)  # fmt: skip
"""The proxy is one that nobody listens on: whatever the page tried to fetch would fail."""

BROWSER_LIMIT_S = 90


class Element:
    """One element of the page: tag, attributes, and the text of it and of what it holds."""

    def __init__(self, tag: str, attributes: dict[str, str], ancestors: list[Element]) -> None:
        self.tag, self.attributes, self.ancestors = tag, attributes, ancestors
        self.text = ""

    def inside(self, **wanted: str) -> bool:
        return any(a.attributes.get(k) == v for a in self.ancestors for k, v in wanted.items())


class Page(HTMLParser):
    """Elements in document order."""

    VOID = ("meta", "link", "input", "br", "img", "path", "use", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {k: v or "" for k, v in attrs}, list(self._open))
        self.elements.append(element)
        if tag not in self.VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while any(e.tag == tag for e in self._open) and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def find(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            e
            for e in self.elements
            if e.tag == tag and all(e.attributes.get(k) == v for k, v in wanted.items())
        ]


@pytest.fixture(scope="module")
def browser() -> Callable[..., str]:
    """Runs the headless browser on a file and returns what it printed."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium here; .ci/run installs Debian's package chromium")
        pytest.skip("needs a browser: apt-get install chromium")

    def run(profile: Path, address: str, *flags: str) -> str:
        done = subprocess.run(
            [found, *FLAGS, f"--user-data-dir={profile}", *flags, address],
            capture_output=True,
            text=True,
            timeout=BROWSER_LIMIT_S,
            check=True,
        )
        return done.stdout

    return run


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Any]]:
    """A small real study of hgemm_v2."""
    items = [
        {
            "kernel": "hgemm_v2",
            "fault": fault,
            "site": 0,
            "shape": [128, 128, 192],
            "schedule": schedule,
            "seed": 0,
        }
        for fault in ("no-op", "missing-phase-flip", "short-k-loop", "missing-commit")
        for schedule in ("in-order", "eager")
    ]
    return settle([run_item(item) for item in items])


pytestmark = pytest.mark.xdist_group("hgemm_v2")


def test_page_in_a_browser_without_network(
    browser: Callable[..., str], outcomes: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    write_report(outcomes, path)
    address = f"{path.as_uri()}#at-hgemm_v2-missing-phase-flip"
    page = Page(browser(tmp_path / "profile", address, "--dump-dom"))

    # missing-phase-flip under the eager schedule: the chapter's test passes, ordering reports it.
    where = {"data_kernel": "hgemm_v2", "data_fault": "missing-phase-flip"}
    (row,) = page.find("tr", **where, data_shape="128x128x192", data_schedule="eager")
    assert row.attributes["class"] == "interesting"
    said = {
        cell.attributes["data-oracle"]: cell.text
        for cell in page.elements
        if "data-oracle" in cell.attributes and row in cell.ancestors
    }
    assert list(said) == list(ORACLES)
    assert said["tolerance"] == "passes" and said["ordering"] == "notices"

    # The matrices: one for each oracle and one of fates, and the cells lead to the details.
    panels = {e.attributes["data-oracle"]: e for e in page.find("div", class_="panel")}
    assert list(panels) == ["fate", *ORACLES]
    cells = {
        name: next(c for c in page.find("td", **where) if panel in c.ancestors)
        for name, panel in panels.items()
    }
    assert cells["fate"].text == "killed as expected"
    assert (
        cells["tolerance"].text == "0 of 2" and cells["tolerance"].attributes["class"] == "missed"
    )
    assert cells["ordering"].text.startswith("2 of 2") and "●" in cells["ordering"].text
    commit = [
        c
        for c in page.find("td", data_fault="missing-commit")
        if panels["tolerance"] in c.ancestors
    ]
    assert [c.text for c in commit] == ["no result"]
    targets = {e.attributes["id"] for e in page.elements if "id" in e.attributes}
    links = [e.attributes["href"] for e in page.find("a")]
    assert links and all(link[0] == "#" and link[1:] in targets for link in links)

    # The interesting cells have a list of their own.
    (listed,) = [e for e in page.find("tr", **where) if "data-shape" not in e.attributes]
    assert (
        "2 of 2" in listed.text and "in-order, eager" in listed.text and "stale-wait" in listed.text
    )
    assert (
        "In 2 of 6 runs of a wrong kernel, the chapter's numeric test passes."
        in page.elements[0].text
    )

    # The address opened the details: source line, mutated line, finding, replay.
    section = page.find("div", id="at-hgemm_v2-missing-phase-flip")[0]
    (opened,) = [d for d in page.find("details") if "open" in d.attributes]
    assert section in opened.ancestors
    assert "phase_mma ^= 1" in opened.text and "- phase_mma = " in opened.text
    assert "race shared war" in opened.text and re.search(r"kernels/hgemm_v2\.py:\d+", opened.text)
    assert "python -m phaseflip fault hgemm_v2 missing-phase-flip 128 128 192" in opened.text

    # The plot is part of the page.
    (plot,) = page.find("svg")
    assert all(oracle in plot.text for oracle in ORACLES)


def test_the_browser_draws_the_page(
    browser: Callable[..., str], outcomes: list[dict[str, Any]], tmp_path: Path
) -> None:
    matplotlib_image = pytest.importorskip("matplotlib.image")
    path, picture = tmp_path / "report.html", tmp_path / "page.png"
    write_report(outcomes, path)
    flags = (f"--screenshot={picture}", "--window-size=1240,1400")
    browser(tmp_path / "profile", path.as_uri(), *flags)
    pixels = matplotlib_image.imread(picture)[..., :3]
    assert pixels.shape[:2] == (1400, 1240)
    teal, wash = (0x1F / 255, 0x6F / 255, 0x78 / 255), (0xD8 / 255, 0xEB / 255, 0xEC / 255)
    for colour in (teal, wash):  # bars of the plot, cells of the matrix
        assert (abs(pixels - colour).max(axis=2) < 0.01).sum() > 2000


def test_page_refers_to_nothing_outside_itself(outcomes: list[dict[str, Any]]) -> None:
    text = render_report(outcomes)
    page = Page(text)
    for element in page.elements:
        for name in ("src", "href", "xlink:href", "data", "action"):
            assert element.attributes.get(name, "#").startswith("#")
    assert not page.find("link") and "@import" not in text and "url(http" not in text
    (policy,) = page.find("meta", http_equiv="Content-Security-Policy")
    assert "default-src 'none'" in policy.attributes["content"]
    assert render_report(outcomes) == text, "the same outcomes give the same page"


def test_text_from_kernels_is_text() -> None:
    item = study_runners.plan(("kill",)).items[4]
    outcome = study_runners.run(item)
    hostile = "<script>alert('&')</script>"
    text = render_report(
        [outcome | {"fault": hostile, "source": hostile, "change": [f"- {hostile}"]}]
    )
    assert hostile not in text
    assert len(Page(text).find("script")) == 1


def test_page_shows_what_fails_a_study_and_what_is_equivalent() -> None:
    runs = [study_runners.run(i) for i in study_runners.plan(("kill", "pass")).items]
    runs[0] |= {"fate": "killed otherwise", "codes": ["race"]}
    runs[-1] |= {"fate": "harness error", "reason": "the simulator crashed (signal SIGABRT)"}
    page = Page(render_report(settle(runs)))
    text = page.elements[0].text
    assert "the control is killed otherwise" in text and "SIGABRT" in text
    assert "fake_v1 pass at kernels/fake.py:7, on 4 runs" in text
    alarms = [e.text for e in page.find("div", class_="tile alarm")]
    assert alarms == ["1harness error", "killed otherwise, equivalentcontrol (no-op)"]


def test_a_study_without_wrong_runs_has_a_page_too() -> None:
    runs = [study_runners.run(i) for i in study_runners.plan(()).items]
    assert "No such run." in render_report(runs)
    assert "<svg" in render_report([]) and detection_plot([])
