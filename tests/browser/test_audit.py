"""The page of `supancl audit`: filters, search, pages, decisions by mouse and key, and their CSV; 1,000 suspects."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from selenium.webdriver import Keys

from supancl.evaluation.audit import Audit, DuplicatePair, Outlier, Suspect
from supancl.files import absolute_path
from supancl.reports.map import audit_page
from tests.browser.conftest import Browser
from tests.reports.made import NASTY, made_images

COUNT = 400
CLASSES = ("cat", "=dog", NASTY)
SHOWN = "return auditPage.shown.map((entry) => entry.images[0])"
NUMBERS = "return auditPage.data.names.map((name) => Number(name.match(/(\\d{6})\\.png/)[1]))"


def made_audit(count: int, suspects: int) -> tuple[Audit, np.ndarray]:
    """An audit whose suspects are random labelled images, and the features that its neighbours are of."""
    mapped, random = made_images(count, CLASSES), np.random.default_rng(0)
    features = random.normal(size=(count, 8))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarity = unit @ unit.T - 9 * np.eye(count)
    images = mapped._replace(has_files=True)
    rows = random.choice(np.flatnonzero(mapped.labels.numpy() >= 0), suspects, replace=False)
    scores = np.sort(random.uniform(0, 0.5, suspects))
    listed = [
        Suspect(int(row), int((mapped.labels[row] + 1) % 3), float(score), 0.9, 0.1, -0.1, 0.1)
        for row, score in zip(rows, scores, strict=True)
    ]
    pairs = [DuplicatePair(0, 3, "same pixels", 0.0), DuplicatePair(1, 2, "near", 4.5)]
    pairs.append(DuplicatePair(5, count - 1, "mirrored", 7.0))
    summary = {
        "trained_on_these_labels": True, "wrong_percent": 4.1, "wrong_interval": [3.2, 5.0], "agreement": 1.0,
        "outliers": 3, "suspects": suspects, "judged": count, "look_first": 20, "duplicates": 3, "same_pixels": 1,
        "across_splits": 1, "duplicates_with_other_labels": 1,
    }  # fmt: skip
    neighbours = torch.from_numpy(np.argsort(-similarity, axis=1)[:, :8].copy())
    outliers = [Outlier(7, 3.5), Outlier(9, 2.0), Outlier(49, 1.8)]  # the last one has no label
    return Audit(images, listed, pairs, outliers, neighbours, summary), features


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    audit, features = made_audit(COUNT, 60)
    path = tmp_path_factory.mktemp("audit") / "audit.html"
    path.write_text(audit_page(audit), encoding="utf-8")
    return path, audit, features


@pytest.fixture
def page(made, browser: Browser):
    browser.open(made[0])
    browser.run("localStorage.clear()")
    browser.open(made[0])
    return made


def shown(browser: Browser) -> list[int]:
    """The rows of the shown entries' first images, in order."""
    numbers = browser.run(NUMBERS)
    return [numbers[image] for image in browser.run(SHOWN)]


def choose(browser: Browser, menu: str, text: str) -> None:
    next(option for option in browser.find_all(f"#{menu} option") if option.text == text).click()


def test_suspects_are_listed_filtered_searched_and_ordered(page, browser: Browser) -> None:
    _, audit, _ = page
    assert shown(browser) == [suspect.row for suspect in audit.suspects]
    assert "4.1% [3.2, 5.0]" in browser.find(".verdict").text
    choose(browser, "class", "cat")
    cats = [s.row for s in audit.suspects if 0 in (int(audit.images.labels[s.row]), s.suggested)]
    assert shown(browser) == cats
    assert browser.find("#shown").text == f"{len(cats)} of 60 shown"
    choose(browser, "class", "all classes")
    row = audit.suspects[40].row
    browser.find("#search").send_keys(f"{row:06d}")
    assert shown(browser) == [row]


def test_new_labels_by_key_and_mouse_are_kept_and_saved_as_a_source(page, browser: Browser) -> None:
    path, audit, _ = page
    body = browser.find("body")
    body.send_keys(Keys.ARROW_DOWN, "r", "k", "e", "u")  # 0 relabelled, 1 kept, 2 emptied, 3 nothing
    browser.find_all(".audit-card")[5].find_element("css selector", "[data-decision=relabelled]").click()
    assert browser.find("#decided").text == "2 relabelled, 1 kept, 1 emptied"
    choose(browser, "show", "relabelled")
    assert shown(browser) == [audit.suspects[i].row for i in (0, 5)]
    browser.open(path)  # decisions outlast a reload
    assert browser.find("#decided").text == "2 relabelled, 1 kept, 1 emptied"
    browser.find("#save").click()
    with open(browser.wait_for_download("relabelled.csv"), encoding="utf-8", newline="") as file:
        rows = {row["path"]: (row["label"], row["split"]) for row in csv.DictReader(file)}
    names = {-1: "", 0: "cat", 1: "'=dog", 2: NASTY}  # a spreadsheet would compute =dog
    labels = audit.images.labels.tolist()
    for position in (0, 5):
        labels[audit.suspects[position].row] = audit.suspects[position].suggested
    labels[audit.suspects[2].row] = -1
    assert rows == {
        absolute_path(name): (names[label], split)
        for name, label, split in zip(audit.images.names, labels, audit.images.split_names, strict=True)
    }


def test_duplicates_and_outliers_have_their_lists(page, browser: Browser) -> None:
    browser.find("#tab-duplicates").click()
    assert len(browser.find_all(".audit-card")) == 3
    choose(browser, "show", "across splits")
    assert shown(browser) == [5]
    assert "mirrored" in browser.find(".audit-card").text
    browser.find("#tab-outliers").click()
    assert shown(browser) == [7, 9, 49]
    first, _, unlabelled = browser.find_all(".audit-card")
    assert "3.5 times" in first.text
    assert first.find_elements("css selector", ".other")
    assert not unlabelled.find_elements("css selector", ".other")  # no label differs from none
