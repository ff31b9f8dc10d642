"""The template of all pages: charts, light and dark, nothing from outside."""

from __future__ import annotations

import pytest

from supancl.reports.page import charts, html_page
from tests.browser.conftest import Browser

NASTY = '<img src=x onerror="document.title=1"></script><script>document.title = "broken"</script>'
SQUARES = {"name": "a", "colour": 0, "points": [[i, i * i] for i in range(101)]}
CURVES = {
    "loss": {"title": "loss", "x": "step",
             "curves": [SQUARES, {"name": NASTY, "colour": 1, "points": [[0, 5], [100, float("nan")]]}]},
    "one": {"title": "one value", "x": "epoch", "curves": [{"name": "b", "colour": 0, "points": [[3, 2.5]]}]},
}  # fmt: skip


@pytest.fixture
def page(tmp_path, browser: Browser):
    path = tmp_path / "page.html"
    path.write_text(html_page("A page", [charts(CURVES)], data={"charts": CURVES}, scripts=["charts.js"]))
    browser.open(path)
    return path


def test_a_drag_zooms_in_and_a_double_click_shows_everything(page, browser: Browser):
    svg = browser.find("figure[data-chart=loss] svg")

    def labels():
        return [float(text.text) for text in svg.find_elements("css selector", "text[text-anchor=middle]")]

    whole = labels()
    browser.pointer().move_to_element_with_offset(svg, 0, 0).click_and_hold().move_by_offset(60, 0).release().perform()
    zoomed = labels()
    assert min(zoomed) > min(whole)
    assert max(zoomed) < max(whole)
    browser.pointer().double_click(svg).perform()
    assert labels() == whole


def test_a_request_to_the_network_is_noticed_and_refused(tmp_path, browser: Browser):
    path = tmp_path / "page.html"
    path.write_text(html_page("A page", ['<img src="http://127.0.0.1:9/x.png">']))
    browser.open(path)
    assert any("127.0.0.1" in line for line in browser.complaints())
