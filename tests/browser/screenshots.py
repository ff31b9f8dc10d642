"""The pictures of our pages in docs/figures: `make screenshots PHOTOS=FOLDER START=timm:NAME`, some minutes.

    python tests/browser/screenshots.py PHOTOS START [WORK]

PHOTOS is a folder of class folders with some hundred photographs; most tutorials see FEW labels of each class. Their
scripts are run in WORK, from which START's weight file is named; what is there already is only drawn.
docs/figures/README.md says what is shown.
"""

from __future__ import annotations

import argparse
import csv
import html
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from selenium.webdriver import Keys

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.browser.conftest import Browser

ROOT = Path(__file__).resolve().parents[2]
FEW, WRONG = 12, 0.05  # labels of a class; part of the labels of the audit's picture
CARD = """<body style="margin:0;background:#e2e8f0"><style>
div{{position:absolute;border-radius:10px;overflow:hidden;background:#fff;box-shadow:0 1px 5px #64748b}}
img{{display:block;width:100%}}
pre{{margin:0;padding:12px 16px;font:13px/1.55 ui-monospace,monospace;color:#e2e8f0;background:#0f172a;height:100%;
white-space:pre-wrap}}</style>
<div style="left:16px;top:16px;width:600px;height:158px"><pre>{terminal}</pre></div>
<div style="left:16px;top:190px;width:600px;height:434px"><img src="head.png"><img src="cards.png"></div>
<div style="left:632px;top:16px;width:632px;height:608px"><img src="map-square.png"></div></body>"""


class Studio:
    """A folder of runs and pages, and a browser to look at them with."""

    def __init__(self, start: str, work: Path) -> None:
        self.start, self.work = start, work
        work.mkdir(parents=True, exist_ok=True)
        self.browser = Browser(work)

    def python(self, left: str, *words: object) -> None:
        """Run Python in WORK, unless what it leaves is there; what it prints is kept in LEFT.txt."""
        if not (self.work / left).exists():
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SUPANCL_CACHE": str(self.work / "cache")}
            with open(self.work / f"{Path(left).name}.txt", "w") as printed:
                command = [sys.executable, *map(str, words)]
                subprocess.run(command, cwd=self.work, env=environment, check=True, stdout=printed)

    def tutorial(self, name: str, left: str, *words: str, photos: str = "photos") -> None:
        self.python(left, ROOT / "examples" / f"{name}.py", photos, self.start, *words)

    def draw(self, page: str, picture: Path, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)  # of the page, without frame
        self.browser.open(self.work / page)
        self.browser.wait_for(lambda: self.browser.run("return document.readyState") == "complete")
        if page.endswith("map.html"):
            self.browser.run("imageMap.focus(17)")
            self.browser.wait_for(lambda: self.browser.run("return imageMap.sprites.decoded.length > 0"))
        if page.endswith("audit.html"):
            self.browser.pointer().send_keys(Keys.ARROW_DOWN, "r", "r").perform()
        self.browser.wait_for(lambda: not self.browser.run("return document.getAnimations().length"))
        self.browser.driver.save_screenshot(str(picture))
        if picture.parent != self.work:
            Image.open(picture).convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE).save(
                picture, optimize=True
            )
            print(f"{picture.name}: {picture.stat().st_size / 1000:.0f} kB", flush=True)

    def draw_card(self, picture: Path) -> None:
        """A terminal with the output of `supancl predict`, beside parts of the audit and the map."""
        words = ("predict", self.start, "--data", "photos", "--out", "all.csv")
        self.python("all.csv", "-m", "supancl", *words)
        self.draw("map.html", self.work / "map-square.png", 936, 900)
        self.draw("audit/audit.html", self.work / "audit.png", 1200, 1000)
        with Image.open(self.work / "audit.png") as audit:
            audit.crop((30, 20, 1120, 200)).save(self.work / "head.png")
            audit.crop((30, 410, 1170, 986)).save(self.work / "cards.png")
        printed = (self.work / "all.csv.txt").read_text().splitlines()
        command = "$ supancl predict " + self.start.partition("@")[0] + " --data photos --out all.csv"
        terminal = html.escape("\n".join([command, *printed]))
        (self.work / "readme.html").write_text(CARD.format(terminal=terminal))
        self.draw("readme.html", picture, 1280, 640)


def hide_labels(photos: Path, folder: Path) -> None:
    """A copy in which all but FEW photographs of each class are in `unlabelled/`."""
    for number, path in enumerate(sorted(photos.rglob("*.*"))):
        is_labelled = len(list((folder / path.parent.name).glob("*"))) < FEW
        target = folder / (path.parent.name if is_labelled else "unlabelled") / f"{number:04d}{path.suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def write_wrong_labels(photos: Path, table: Path) -> None:
    """A table of the photographs in which some labels are wrong."""
    images = sorted(path.relative_to(table.parent) for path in photos.rglob("*.*"))
    labels, random = np.array([path.parent.name for path in images], dtype=object), np.random.default_rng(0)
    names = sorted(set(labels))
    for i in random.permutation(len(labels))[: round(WRONG * len(labels))]:
        labels[i] = names[(names.index(labels[i]) + random.integers(1, len(names))) % len(names)]
    with open(table, "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *zip(images, labels, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("start")
    parser.add_argument("work", nargs="?", type=Path, default=ROOT / "runs" / "screenshots")
    args = parser.parse_args()
    work, figures = args.work.resolve(), ROOT / "docs" / "figures"
    studio = Studio(args.start, work)
    try:
        if not (work / "all").exists():
            shutil.copytree(args.photos, work / "all")
            hide_labels(work / "all", work / "photos")
            write_wrong_labels(work / "all", work / "photos.csv")
        studio.tutorial("label", "map.html")
        studio.tutorial("clean", "audit/audit.html", photos="photos.csv")
        studio.tutorial("to_timm", "alike.jpg")
        studio.tutorial("own_loss", "runs/power/report.html", "3")
        studio.tutorial("adapt", "runs/adapted/report.html", "5")
        studio.python("small", "-m", "supancl", "import", args.start, "--size", 96, "--out", "small")
        studio.start = "small"  # a CPU is slow at 224 px
        studio.tutorial("choose", "runs/choice/comparison.html", "5", "1", photos="all")
        studio.start = args.start
        studio.draw("map.html", figures / "map.png", 1300, 760)
        studio.draw("audit/audit.html", figures / "audit.png", 1200, 1000)
        studio.draw("runs/adapted/report.html", figures / "report.png", 1200, 1400)
        studio.draw("runs/choice/comparison.html", figures / "comparison.png", 1200, 700)
        studio.draw("runs/power/report.html", figures / "own-loss.png", 1200, 700)
        shutil.copyfile(work / "alike.jpg", figures / "alike.jpg")
        studio.draw_card(figures / "readme.png")
    finally:
        studio.browser.driver.quit()


if __name__ == "__main__":
    main()
