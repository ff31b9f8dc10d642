"""Every page in light and dark: its text can be read, it fits a narrow window, and it asks for nothing outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from supancl.reports.map import audit_page, map_page
from supancl.reports.page import Banner, html_page
from supancl.reports.report import Comparison, open_answers, report_page
from supancl.reports.tables import Cell, Table
from supancl.reports.verdict import RunRecord
from tests.browser.conftest import Browser
from tests.browser.test_audit import made_audit
from tests.evaluation.made import source
from tests.reports.made import logged_run, made_images, made_map

# the lowest contrast (WCAG 2) of a text with what is behind it, and that text
CONTRAST = """
const parse = (colour) => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
};
const light = ([...rgb]) => rgb.slice(0, 3).map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
let worst = [99, ""];
for (const element of document.body.querySelectorAll("*")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.disabled || element.closest("script, option")) continue;
  let behind = element;
  const paint = (one, what) => parse(getComputedStyle(one)[what]);
  while (behind.parentElement && paint(behind, "backgroundColor")[3] < 255) behind = behind.parentElement;
  const [a, b] = [paint(element, "color"), paint(behind, "backgroundColor")].map(light);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < worst[0]) worst = [ratio, element.textContent.slice(0, 80)];
}
return worst;
"""


def evaluated(path: Path) -> Path:
    """A run whose linear accuracy was measured."""
    data = source(path / "data.npz", train=90, test=30)
    folder = logged_run(path / "run", source=str(data))
    gap = {"name": "random weights", "difference": 20.0, "difference_interval": [10.0, 30.0]}
    result = {"accuracy": 60.0, "accuracy_interval": [50.0, 70.0], "chance": 33.3, "tested_images": 300}
    folder.write_evaluation("linear", {**result, "source": str(data), "baselines": [gap]})
    return folder.path


@pytest.fixture
def pages(tmp_path, monkeypatch) -> dict[str, str]:
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    record = RunRecord(evaluated(tmp_path))
    table = Table(["recipe", "difference"], [["a", Cell("+1.0 ± 0.5", "best")]], "lr", caption="compare on photos")
    tones = [Banner(tone, f"{tone}.", "Why.") for tone in ("good", "unclear", "bad")]
    return {
        "report": report_page({"run": record}, {"run": open_answers(record)}),
        "map": map_page(made_images(60, ("cat", "dog")), [made_map("run", 60, 0)[0]]),
        "audit": audit_page(made_audit(100, 20)[0]),
        "comparison": report_page({"run": record}, comparison=Comparison("good", ["a is better"], table, tmp_path)),
        "verdicts": html_page("Verdicts", [], banners=tones),
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read(pages, tmp_path, browser: Browser, theme: str) -> None:
    features, size = [{"name": "prefers-color-scheme", "value": theme}], browser.driver.get_window_size()
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        for name, text in pages.items():
            (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
            browser.open(tmp_path / f"{name}.html")
            browser.run("for (const details of document.querySelectorAll('details')) details.open = true")
            contrast, worst = browser.run(CONTRAST)
            assert contrast >= 4.5, (name, worst)
            paper = browser.run("return getComputedStyle(document.body).backgroundColor")
            assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[theme]
            browser.driver.set_window_size(500, 900)
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth"), name
            browser.driver.set_window_size(size["width"], size["height"])
            assert not browser.complaints(), name
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        browser.driver.set_window_size(size["width"], size["height"])


def test_a_request_to_the_network_is_noticed_and_refused(tmp_path, browser: Browser):
    path = tmp_path / "page.html"
    path.write_text(html_page("A page", ['<img src="http://127.0.0.1:9/x.png">']))
    browser.open(path)
    assert any("127.0.0.1" in line for line in browser.complaints())
