"""The report in a browser: from disk, without network, with values that can be read off."""

from __future__ import annotations

import pytest
from selenium.webdriver import Keys

from supancl.reports.report import report_page
from supancl.reports.verdict import RunRecord
from tests.browser.conftest import Browser
from tests.helpers import class_folders
from tests.reports.made import logged_run

NASTY = '<img src=x onerror="document.title=1"><script>document.title = "broken"<'


@pytest.fixture
def record(tmp_path):
    root = class_folders(tmp_path / "images", (NASTY, "dog"), each=8)
    return RunRecord(logged_run(tmp_path / "run", source=str(root)).path)


@pytest.fixture
def show(tmp_path, browser: Browser):
    def write_and_open(*pages, **options):
        (tmp_path / "report.html").write_text(report_page(*pages, **options))
        browser.open(tmp_path / "report.html")

    return write_and_open


def read_off(browser: Browser, chart: str) -> list[tuple[float, str]]:
    """(epoch, values) at places from the left to the right of a chart."""
    svg = browser.find(f'figure[data-chart="{chart}"] svg')
    browser.run("arguments[0].scrollIntoView({block: 'center'})", svg)
    width, found = svg.size["width"], []
    for share in (-0.3, -0.1, 0.1, 0.45):
        browser.pointer().move_to_element_with_offset(svg, round(share * width), 0).perform()
        at, _, values = browser.find(f'figure[data-chart="{chart}"] .readout').text.partition(": ")
        found.append((float(at.removeprefix("epoch ")), values))
    return found


def test_the_curves_are_those_of_the_log(record, show, browser: Browser):
    show({"run": record})
    logged = {row["epoch"] + 1: row for row in record.train_rows}
    readings = read_off(browser, "loss")
    assert {epoch for epoch, _ in readings} == {1, 2, 3, 4}
    for epoch, values in readings:
        loss = logged[epoch]["loss"]
        assert values == f"loss {loss:g}, self-supervised {loss:g}, supervised {loss:g}"
    checks = {row["epoch"] + 1: row for row in record.checks}
    for epoch, values in read_off(browser, "knn"):
        assert values == f"k-NN {checks[epoch]['knn']:g}, linear {checks[epoch]['linear']:g}"
    for epoch, value in read_off(browser, "s_w/s_t"):
        assert float(value) == checks[epoch]["s_w/s_t"]


def test_a_chart_is_read_and_zoomed_with_keys(record, show, browser: Browser):
    show({"run": record})
    svg, readout = (browser.find(f"figure[data-chart=loss] {name}") for name in ("svg", ".readout"))
    browser.run("arguments[0].focus()", svg)

    def press(*keys: str) -> str:
        browser.pointer().send_keys(*keys).perform()
        return readout.text.partition(":")[0]

    assert [press(key) for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)] == [
        "epoch 1", "epoch 2", "epoch 1"
    ]  # fmt: skip
    assert [press(Keys.HOME), press(Keys.END)] == ["epoch 1", "epoch 4"]
    assert press(Keys.ARROW_RIGHT) == "epoch 4"  # there is no further one


def test_a_drag_zooms_in_and_a_double_click_shows_everything(record, show, browser: Browser):
    show({"run": record})
    svg = browser.find("figure[data-chart=loss] svg")

    def labels() -> list[float]:
        return [float(text.text) for text in svg.find_elements("css selector", "text[text-anchor=middle]")]

    whole = labels()
    browser.pointer().move_to_element_with_offset(svg, 0, 0).click_and_hold().move_by_offset(60, 0).release().perform()
    assert labels() != whole
    browser.pointer().double_click(svg).perform()
    assert labels() == whole


def test_several_runs_are_in_one_chart(record, show, browser: Browser):
    show({"a": record, NASTY: record})
    assert [button.text for button in browser.find_all("figure[data-chart=loss] .legend button")] == ["a", NASTY]
    assert len(browser.find_all("figure[data-chart=loss] .curve")) == 2
    assert len(browser.find_all(".verdict.bad")) == 2  # k-NN of 44% where chance is 50%
