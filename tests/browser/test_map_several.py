"""The page of `supancl map` for images with several labels, from the command: colours, filters, search, texts, CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from supancl.data.opening import open_data
from supancl.data.splits import DataSpec
from tests.browser.conftest import Browser
from tests.evaluation.made import bright, run_folder
from tests.files import supancl

SHOWN = "return imageMap.indices((i) => imageMap.shared.visible[i])"
COUNT = 60


def labels_of(number: int, level: int) -> dict[str, float]:
    """The classes and weights of an image: two of weight 1, a heavier and a lighter one, one alone, or none."""
    if number == 7:
        return {}
    if number % 10 == 3:
        return {"odd": 0.25, f"level {level}": 0.75}
    return {f"level {level}": 1.0, **({"dark": 1.0} if level < 2 else {})}


@pytest.fixture
def page(tmp_path, monkeypatch, capsys, browser: Browser) -> list[dict[str, float]]:
    """The page of 60 images; what each is labelled with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPANCL_CACHE", str(tmp_path / "cache"))
    Path("photos").mkdir()
    images, levels = bright(COUNT, 4)
    found, lines = [], ["path,label"]
    for i, (image, level) in enumerate(zip(images, levels.tolist(), strict=True)):
        Image.fromarray(image).save(f"photos/{i:02d}.png")
        found.append(labels_of(i, level))
        texts = [name if weight == 1 else f"{name}:{weight}" for name, weight in found[-1].items()]
        lines.append(f"photos/{i:02d}.png,{';'.join(texts)}")
    Path("photos.csv").write_text("\n".join(lines) + "\n")
    run_folder(Path("run"), source="photos.csv", described=True)
    said = supancl(capsys, "map", "run", "--data", "photos.csv", "--out", "map.html", "--device", "cpu")
    assert said.code == 0, said.err
    browser.open(tmp_path / "map.html")
    return found


def having(found: list[dict[str, float]], name: str) -> list[int]:
    return [i for i, labels in enumerate(found) if name in labels]


def box(browser: Browser, name: str):
    number = browser.run("return imageMap.classes.indexOf(arguments[0])", name)
    return browser.find(f"#classes input[data-label='{number}']")


def test_an_image_is_found_under_any_of_its_classes_and_coloured_by_the_heaviest(page, browser: Browser):
    colours = browser.run("return [...imageMap.shared.classOf].map((label) => imageMap.classes[label])")
    rarity = {name: len(having(page, name)) for name in {name for labels in page for name in labels}}
    for labels, colour in zip(page, colours, strict=True):
        heaviest = [name for name, weight in labels.items() if weight == max(labels.values())]
        assert colour == (min(heaviest, key=rarity.__getitem__) if labels else "(unlabelled)")
    counts = browser.run("return Object.fromEntries(imageMap.classes.map((name, i) => [name, imageMap.counts[i]]))")
    assert counts == {**rarity, "(unlabelled)": 1}
    browser.find("#no-classes").click()
    box(browser, "dark").click()
    assert browser.run(SHOWN) == having(page, "dark")
    box(browser, "odd").click()
    assert browser.run(SHOWN) == sorted({*having(page, "dark"), *having(page, "odd")})
    browser.find("#all-classes").click()
    assert len(browser.run(SHOWN)) == COUNT
    browser.find("#search").send_keys("ODD")
    assert browser.run(SHOWN) == having(page, "odd")


def test_all_labels_of_an_image_are_shown_and_neighbours_share_one(page, browser: Browser):
    browser.run("imageMap.focus(13)")
    assert browser.find("#image figcaption strong").text == ", ".join(
        f"{name}:{weight}" for name, weight in sorted(page[13].items())
    )
    neighbours = browser.run("return [...imageMap.scatters[0].neighboursOf(13)]")
    shared = [bool(page[13].keys() & page[other].keys()) for other in neighbours]
    assert f"{sum(shared)} of the 12 nearest" in browser.find("#image").text
    framed = ["other" not in image.get_attribute("class") for image in browser.find_all("#image .thumbnails canvas")]
    assert framed == shared
    browser.run("imageMap.hover(imageMap.scatters[0], 0, { clientX: 5, clientY: 5 })")
    assert browser.find("#tip strong").text == "dark, level 0"
    browser.run("imageMap.hover(imageMap.scatters[0], 7, { clientX: 5, clientY: 5 })")
    assert browser.find("#tip strong").text == "(unlabelled)"


def test_the_saved_table_is_read_back_with_its_weights(page, browser: Browser, tmp_path):
    (browser.downloads / "selection.csv").unlink(missing_ok=True)  # of another test
    browser.find("#select-shown").click()
    browser.find("#save").click()
    saved = browser.wait_for_download("selection.csv")
    with open(saved, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    saved.unlink()
    assert len(rows) == COUNT
    table = tmp_path / "selection.csv"
    lines = [f"{row['path']},{row['label']}" for row in rows]
    table.write_text("\n".join(["path,label", *lines]) + "\n")
    data = open_data(DataSpec(source=str(table), holdout=0.0))
    for i, pairs in zip(data.train.index.tolist(), data.train.all_labels.pairs.tolist(), strict=True):
        assert {data.classes[int(n)]: weight for n, weight in pairs if n >= 0} == pytest.approx(page[i])
    assert np.array_equal(data.train.index, np.arange(COUNT))
