"""From a folder of images to pages by documented lines alone: which lines, which images, and what a page must show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from tests.browser.conftest import Browser
from tests.docs.blocks import ROOT, Block, blocks_of

AUDIT = ROOT / "docs" / "audit.md"
SHAPES = ("circle", "square", "triangle")
SIDE = 64


def make_photos(folder: Path, each: int, unlabelled: int) -> None:
    """Class folders with drawn shapes in random colours on noise, and some without a label."""
    random = np.random.default_rng(0)
    for number, shape in enumerate(SHAPES):
        for index in range(each + unlabelled):
            image = Image.fromarray(random.integers(0, 90, (SIDE, SIDE, 3), dtype=np.uint8))
            x, y = (int(value) for value in random.integers(4, 24, 2))
            box, colour = (x, y, x + 34, y + 34), tuple(int(value) for value in random.integers(120, 256, 3))
            draw = ImageDraw.Draw(image)
            if shape == "circle":
                draw.ellipse(box, fill=colour)
            elif shape == "square":
                draw.rectangle(box, fill=colour)
            else:
                draw.polygon([(x, y + 34), (x + 17, y), (x + 34, y + 34)], fill=colour)
            path = folder / (shape if index < each else "unlabelled")
            path.mkdir(parents=True, exist_ok=True)
            image.save(path / f"{number}-{index:03d}.png")


def photo_blocks() -> list[Block]:
    """The README's blocks for your own images, and those of docs/audit.md."""
    readme = [block for block in blocks_of(ROOT / "README.md") if block.kind == "bash" and "photos" in block.text]
    audit = blocks_of(AUDIT) if AUDIT.exists() else []
    return readme + [block for block in audit if block.kind == "bash"]


def check_pages(browser: Browser, folder: Path) -> list[str]:
    """Open every page below the folder. Each must have a title and draw something, without a complaint. Their paths."""
    paths = []
    for page in sorted(folder.rglob("*.html")):
        browser.open(page)
        browser.wait_for(lambda: browser.run("return document.readyState") == "complete")
        assert browser.driver.title.strip(), page
        assert browser.find("h1").text, page
        drawn = [item for item in browser.find_all("svg, canvas, table, img") if item.is_displayed()]
        assert any(item.size["width"] > 50 and item.size["height"] > 20 for item in drawn), page
        assert not browser.complaints(), page
        paths.append(str(page.relative_to(folder)))
    return paths
