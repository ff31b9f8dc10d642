"""The pictures of our pages in docs/figures: `make screenshots`, five minutes on two cores.

    python tests/browser/screenshots.py [WORK] [--root DATA]

Runs are kept in WORK, so that a second call only draws. The suite's picture needs the unpacked data sets (pets and
traffic signs) in DATA and is left as it is without them. docs/report.md, map.md, audit.md and evaluate.md say what is
shown.
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
from PIL import Image
from selenium.webdriver import ActionChains, Keys
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.browser.conftest import Browser

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
WRONG = 0.05  # of the labels of the audit's picture
SHOWN_IMAGE, POINTED_AT = 170, 93  # an eight that resembles ones, and a one


class Studio:
    """A folder of runs and pages, and a browser to look at them with."""

    def __init__(self, work: Path, figures: Path, epochs: int | None = None) -> None:
        self.work, self.figures, self.epochs = work, figures, epochs
        work.mkdir(parents=True, exist_ok=True)
        self.browser = Browser(work)

    def supancl(self, *words: object) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SUPANCL_CACHE": str(self.work / "cache")}
        command = [sys.executable, "-m", "supancl", *map(str, words)]
        subprocess.run(command, cwd=self.work, env=environment, check=True)

    def pretrain(self, name: str, *words: object, epochs: int) -> None:
        if not (self.work / name / "encoder.safetensors").exists():
            self.supancl("pretrain", *words, "--epochs", self.epochs or epochs, "--device", "cpu", "--out", name)

    def open(self, page: str, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)  # of the page, without frame
        self.browser.open(self.work / page)

    def save(self, name: str) -> None:
        self.browser.driver.save_screenshot(str(self.figures / name))
        print(f"{name}: {(self.figures / name).stat().st_size / 1000:.0f} kB", flush=True)


def draw_report(studio: Studio) -> None:
    for name in ("supsiam", "simsiam"):
        small = ("--set", "data.limit=512", "--set", "encoder.width=16")
        studio.pretrain(name, f"digits.{name}", *small, epochs=30)
    studio.supancl("report", "supsiam", "simsiam", "--out", "report.html")
    studio.open("report.html", 1200, 1300)
    studio.save("report.png")


def draw_map(studio: Studio) -> None:
    alphas = ("0", "0.5", "1")
    for alpha in alphas:
        studio.pretrain(f"alpha-{alpha}", "digits.supsiam", "--set", f"loss.alpha={alpha}", epochs=10)
    names = (f"alpha {alpha}=alpha-{alpha}" for alpha in alphas)
    studio.supancl("map", *names, "--data", "digits", "--out", "map.html")
    studio.open("map.html", 1300, 710)
    browser = studio.browser
    browser.wait_for(lambda: "1,797 of 1,797" in browser.find("body").text)
    lasso_around(browser, SHOWN_IMAGE)
    point_at(browser, SHOWN_IMAGE).click().perform()
    point_at(browser, POINTED_AT).perform()
    studio.save("map.png")


def point_at(browser: Browser, image: int, right: int = 0, down: int = 0) -> ActionChains:
    """Move to a place beside the point of an image in the first map."""
    x, y = browser.run(f"return imageMap.scatters[0].toScreen({image})")
    canvas = browser.find(".map-panel canvas")
    left, top = round(x - canvas.size["width"] / 2), round(y - canvas.size["height"] / 2)
    return browser.pointer().move_to_element_with_offset(canvas, left + right, top + down)


def lasso_around(browser: Browser, image: int, reach: int = 25) -> None:
    browser.find("#lasso").click()
    corners = [(-reach, -reach), (reach, -reach), (reach, reach), (-reach, reach)]
    point_at(browser, image, *corners[0]).click_and_hold().perform()
    for corner in corners[1:]:
        point_at(browser, image, *corner).perform()
    browser.pointer().release().perform()
    browser.find("#lasso").click()


def draw_audit(studio: Studio) -> None:
    digits = load_digits()
    images, labels = digits.images, digits.target.copy()
    chosen = np.random.default_rng(0).permutation(len(labels))[: round(WRONG * len(labels))]
    labels[chosen] = (labels[chosen] + np.random.default_rng(1).integers(1, 10, len(chosen))) % 10
    (studio.work / "images").mkdir(exist_ok=True)
    with open(studio.work / "digits.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label"])
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(np.round(image * 255 / 16).astype(np.uint8)).save(
                studio.work / "images" / f"{number:04d}.png"
            )
            table.writerow([f"images/{number:04d}.png", label])
        table.writerow(["images/0007.png", labels[7]])
    studio.pretrain("labels", "digits.supsiam", "--data", "digits.csv", epochs=10)
    shutil.rmtree(studio.work / "audit", ignore_errors=True)
    studio.supancl("audit", "labels", "--data", "digits.csv", "--out", "audit")
    studio.open("audit/audit.html", 1200, 1030)
    studio.browser.wait_for(lambda: studio.browser.find_all(".audit-card"))
    studio.browser.pointer().send_keys(Keys.ARROW_DOWN, "w", "w").perform()
    studio.save("audit.png")


def draw_suite(studio: Studio, root: Path) -> None:
    for name in ("supsiam", "simsiam"):
        words = (
            "--data",
            root / "cifar10.npz",
            "--set",
            "data.limit=2000",
            "--set",
            "encoder.name=cnn",
            "--set",
            "encoder.width=16",
        )
        studio.pretrain(f"cifar-{name}", f"auto.{name}", *words, epochs=5)
    words = ("--root", root, "--sets", "pets,traffic-signs", "--protocols", "transfer,fewshot", "--out", "suite")
    studio.supancl("evaluate", "suite", "cifar-supsiam", "cifar-simsiam", *words)
    studio.open("suite/index.html", 1100, 1250)
    studio.save("suite.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("work", nargs="?", type=Path, default=ROOT / "runs" / "screenshots")
    parser.add_argument("--root", type=Path, help="unpacked data sets, for the suite")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--epochs", type=int, help="of every run, to try this out")
    args = parser.parse_args()
    studio = Studio(args.work.resolve(), args.figures.resolve(), args.epochs)
    try:
        draw_report(studio)
        draw_map(studio)
        draw_audit(studio)
        if args.root:
            draw_suite(studio, args.root.resolve())
    finally:
        studio.browser.driver.quit()


if __name__ == "__main__":
    main()
