"""The page of `supancl map`: filter, search, hover, lasso, neighbours, several encoders and labels."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from matplotlib.path import Path as Polygon
from selenium.webdriver import Keys

from supancl.reports.map import map_page
from tests.browser.conftest import Browser
from tests.reports.made import NASTY, made_images, made_map

COUNT = 300
CLASSES = ("cat", "=dog", NASTY)
TITLES = ("alpha = 0", "alpha = 1")
SHOWN = "return imageMap.indices((i) => imageMap.shared.visible[i])"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    images = made_images(COUNT, CLASSES)
    maps, features = zip(*(made_map(title, COUNT, seed) for seed, title in enumerate(TITLES)), strict=True)
    path = tmp_path_factory.mktemp("map") / "map.html"
    path.write_text(map_page(images, maps), encoding="utf-8")
    return path, images, maps, features


@pytest.fixture
def page(made, browser: Browser):
    browser.open(made[0])
    return made


def canvas(browser: Browser, panel: int = 0):
    return browser.find_all(".map-panel canvas")[panel]


def place_of(browser: Browser, index: int, panel: int = 0) -> tuple[int, int]:
    """Where an image's point is, from the middle of the canvas."""
    x, y = browser.run(f"return imageMap.scatters[{panel}].toScreen({index})")
    size = browser.run(f"const c = imageMap.scatters[{panel}].canvas; return [c.clientWidth, c.clientHeight]")
    return round(x - size[0] / 2), round(y - size[1] / 2)


def isolated(maps) -> int:
    """The image whose point is farthest from its nearest one: no other is below the pointer."""
    points = maps[0].points.astype(float)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(len(points))
    inner = np.abs(points).max(1) < 2
    return int(np.where(inner, distances.min(1), 0).argmax())


def drawn_pixels(browser: Browser, selector: str) -> np.ndarray:
    code = (
        "const c = arguments[0], { width, height } = c;"
        "return [width, height, ...c.getContext('2d').getImageData(0, 0, width, height).data]"
    )
    width, height, *values = browser.run(code, browser.find(selector))
    return np.array(values, np.uint8).reshape(height, width, 4)[..., :3].transpose(2, 0, 1)


def test_classes_splits_and_words_filter(page, browser: Browser):
    _, images, _, _ = page
    assert len(browser.run(SHOWN)) == COUNT
    browser.find("#classes input[data-label='0']").click()
    assert browser.run(SHOWN) == np.flatnonzero(images.labels.numpy() != 0).tolist()
    assert browser.find("#shown").text.startswith(f"{(images.labels.numpy() != 0).sum()} of {COUNT}")
    browser.find("#no-classes").click()
    assert browser.run(SHOWN) == []
    browser.find("#all-classes").click()
    browser.find("#split option[value=test]").click()
    assert browser.run(SHOWN) == list(range(270, 300))
    browser.find("#split option[value='']").click()
    browser.find("#search").send_keys("00012")
    assert browser.run(SHOWN) == [12, *range(120, 130)]
    browser.find("#search").send_keys(Keys.CONTROL + "a", Keys.DELETE)
    browser.find("#search").send_keys("DOG")
    assert browser.run(SHOWN) == np.flatnonzero(images.labels.numpy() == 1).tolist()


def test_hovering_shows_the_image_below_the_pointer(page, browser: Browser):
    _, images, maps, _ = page
    index = isolated(maps)
    browser.pointer().move_to_element_with_offset(canvas(browser), *place_of(browser, index)).perform()
    browser.wait_for(lambda: browser.find("#tip canvas").get_attribute("data-ready") == str(index))
    assert images.names[index].removeprefix("photos/") in browser.find("#tip").text
    shown = drawn_pixels(browser, "#tip canvas").astype(int)
    pixels = images.splits["all"].store.pixels.numpy().astype(int)
    differences = np.abs(pixels - shown).mean((1, 2, 3))
    assert differences.argmin() == index
    assert differences[index] < 12 < np.sort(differences)[1]
    assert browser.run("return imageMap.shared.hovered") == index  # both maps mark it


def test_the_csv_of_a_lasso_has_the_images_inside_it(page, browser: Browser):
    _, images, maps, _ = page
    browser.find("#classes input[data-label='0']").click()  # hidden images are not selected
    browser.find("#lasso").click()
    corners = [(-80, -120), (90, -90), (60, 110), (-20, 20), (-90, 100)]
    pointer = browser.pointer().move_to_element_with_offset(canvas(browser), *corners[0]).click_and_hold()
    for corner in corners[1:]:
        pointer.move_to_element_with_offset(canvas(browser), *corner)
    pointer.release().perform()
    selected = browser.run("return imageMap.selection")
    polygon = browser.run(
        "const s = imageMap.scatters[0], w = s.canvas.clientWidth / 2, h = s.canvas.clientHeight / 2;"
        "return arguments[0].map(([x, y]) => s.toMap(x + w, y + h))",
        corners,
    )
    inside = np.flatnonzero(Polygon(polygon).contains_points(maps[0].points) & (images.labels.numpy() != 0))
    assert 10 < len(inside) < COUNT
    assert len(set(inside) ^ set(selected)) <= 2  # a point on the line
    (browser.downloads / "selection.csv").unlink(missing_ok=True)  # of another test
    browser.find("#save").click()
    with open(browser.wait_for_download("selection.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == [images.names[i] for i in selected]
    labels = {-1: "", 0: "cat", 1: "'=dog", 2: NASTY}  # a spreadsheet would compute =dog
    assert [row["label"] for row in rows] == [labels[images.labels.numpy()[i]] for i in selected]
    assert [row["split"] for row in rows] == [images.split_names[i] for i in selected]


def test_a_click_shows_the_nearest_neighbours_of_every_encoder(page, browser: Browser):
    _, _, maps, features = page
    index = isolated(maps)
    browser.pointer().move_to_element_with_offset(canvas(browser), *place_of(browser, index)).click().perform()
    lists = browser.find_all("#image .thumbnails")
    assert [shown.get_attribute("data-encoder") for shown in lists] == list(TITLES)
    for shown, values in zip(lists, features, strict=True):
        unit = values / np.linalg.norm(values, axis=1, keepdims=True)
        nearest = np.argsort(-(unit @ unit[index]))[1:13]
        thumbnails = shown.find_elements("css selector", "canvas")
        assert [int(thumbnail.get_attribute("data-image")) for thumbnail in thumbnails] == nearest.tolist()
    browser.find("#image .thumbnails canvas").click()  # a neighbour becomes the image
    assert browser.run("return imageMap.shared.focus") != index


def test_several_labels_of_an_image_are_saved(tmp_path, browser: Browser):
    path, cells = tmp_path / "map.html", [f"cat;owl:0.{i % 10}5" if i % 3 else "" for i in range(60)]
    path.write_text(map_page(made_images(60, CLASSES)._replace(cells=cells), [made_map("run", 60, 0)[0]]))
    browser.open(path)
    (browser.downloads / "selection.csv").unlink(missing_ok=True)  # of another test
    browser.find("#select-shown").click()
    browser.find("#save").click()
    with open(browser.wait_for_download("selection.csv"), encoding="utf-8", newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == cells
