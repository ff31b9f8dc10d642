"""The pictures of our pages in docs/figures, of photographs: `make screenshots PHOTOS=FOLDER`, some minutes.

    python tests/browser/screenshots.py PHOTOS [WORK] [--start timm:NAME]

PHOTOS is a folder of class folders with some hundred photographs. Runs are kept in WORK, so that a second call only
draws. docs/report.md, map.md, audit.md and choosing.md say what is shown.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from selenium.webdriver import Keys

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.browser.conftest import Browser

ROOT = Path(__file__).resolve().parents[2]
WRONG = 0.05  # of the labels of the audit's picture


class Studio:
    """A folder of runs and pages, and a browser to look at them with."""

    def __init__(self, photos: Path, work: Path, figures: Path, start: str | None) -> None:
        self.photos, self.work, self.figures, self.start = photos, work, figures, start
        work.mkdir(parents=True, exist_ok=True)
        self.browser = Browser(work)

    def supancl(self, *words: object) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SUPANCL_CACHE": str(self.work / "cache")}
        command = [sys.executable, "-m", "supancl", *map(str, words)]
        subprocess.run(command, cwd=self.work, env=environment, check=True)

    def pretrain(self, name: str, *words: object) -> None:
        if not (self.work / name / "encoder.safetensors").exists():
            start = ("--init", self.start) if self.start else ()
            self.supancl("pretrain", "supsiam", *start, *words, "--device", "cpu", "--out", name)
            self.supancl("evaluate", name, "--device", "cpu")

    def draw(self, page: str, name: str, width: int, height: int) -> None:
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
        self.browser.driver.save_screenshot(str(self.figures / name))
        print(f"{name}: {(self.figures / name).stat().st_size / 1000:.0f} kB", flush=True)


def write_wrong_labels(photos: Path, table: Path) -> None:
    """A table of the photographs in which some labels are wrong."""
    images = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    labels, random = np.array([path.parent.name for path in images]), np.random.default_rng(0)
    chosen = random.permutation(len(labels))[: round(WRONG * len(labels))]
    names = sorted(set(labels))
    labels[chosen] = [names[(names.index(labels[i]) + random.integers(1, len(names))) % len(names)] for i in chosen]
    with open(table, "w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *zip(images, labels, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("work", nargs="?", type=Path, default=ROOT / "runs" / "screenshots")
    parser.add_argument("--start", help="trained weights, such as timm:resnet18")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    studio = Studio(args.photos.resolve(), args.work.resolve(), args.figures.resolve(), args.start)
    try:
        studio.pretrain("run", "--data", studio.photos, "--epochs", args.epochs)
        studio.supancl("report", "run")
        studio.draw("run/report.html", "report.png", 1200, 1500)
        studio.supancl("map", "run")
        studio.draw("run/map.html", "map.png", 1300, 760)
        write_wrong_labels(studio.photos, studio.work / "labels.csv")
        shutil.rmtree(studio.work / "audit", ignore_errors=True)
        studio.supancl("audit", args.start or "run", "--data", "labels.csv", "--out", "audit")
        studio.draw("audit/audit.html", "audit.png", 1200, 1000)
        words = ("supsiam", "simsiam", "--data", studio.photos, "--epochs", args.epochs, "--seeds", 3)
        if not (studio.work / "compared" / "comparison.html").exists():
            studio.supancl("compare", *words, "--set", "encoder.width=16", "--device", "cpu", "--out", "compared")
        studio.draw("compared/comparison.html", "comparison.png", 1200, 900)
    finally:
        studio.browser.driver.quit()


if __name__ == "__main__":
    main()
