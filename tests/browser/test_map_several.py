"""The page of `supancl map` for images with several labels, from the command: colours, filters, search, texts, CSV."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from supancl.data.opening import open_data
from supancl.data.spec import DataSpec
from tests.browser.conftest import Browser
from tests.evaluation.made import bright, run_folder
from tests.files import supancl

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


def test_the_heaviest_label_colours_an_image_and_the_saved_table_has_all(page, browser: Browser, tmp_path):
    colours = browser.run("return [...imageMap.shared.classOf].map((label) => imageMap.classes[label])")
    rarity = Counter(name for labels in page for name in labels)
    for labels, colour in zip(page, colours, strict=True):
        heaviest = [name for name, weight in labels.items() if weight == max(labels.values())]
        assert colour == (min(heaviest, key=rarity.__getitem__) if labels else "(unlabelled)")
    browser.run("imageMap.hover(imageMap.scatters[0], 0, { clientX: 5, clientY: 5 })")
    assert browser.find("#tip strong").text == "dark, level 0"
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
