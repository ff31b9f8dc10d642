"""The site from disk: links lead from the front page to what users look for, and search finds their questions."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.browser.conftest import Browser
from tests.docs.blocks import ROOT, environment_of, prefix_of_this_python

QUESTIONS = re.findall(r"(?m)^## (.*)", (ROOT / "docs" / "questions.md").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a copy of the repository, because it writes docs/reference."""
    copy = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples", "RESULTS.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        place, unwanted = ROOT / name, shutil.ignore_patterns("_build", "reference")
        shutil.copytree(place, copy / name, ignore=unwanted) if place.is_dir() else shutil.copyfile(place, copy / name)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", "docs", "site"]
    subprocess.run(command, cwd=copy, env=environment_of(prefix_of_this_python(), ROOT), check=True)
    return copy / "site"


def test_links_lead_from_the_front_page(site: Path, browser: Browser) -> None:
    for name in ("import", "predict", "audit", "export"):
        browser.open(site / "index.html")
        browser.run("arguments[0].click()", browser.find(f"article a[href='{name}.html']"))
        browser.wait_for(lambda name=name: browser.driver.current_url.endswith(f"/{name}.html"))
        assert browser.find("h1").text
        assert not browser.complaints()


@pytest.mark.parametrize("question", QUESTIONS)
def test_search_finds_a_question_by_its_title(question: str, site: Path, browser: Browser) -> None:
    browser.driver.get(f"{(site / 'search.html').as_uri()}?q={quote(question)}")
    browser.wait_for(
        lambda: question.rstrip("?") in "".join(link.text for link in browser.find_all("#search-results a"))
    )
