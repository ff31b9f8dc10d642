"""A headless Chromium that opens pages from disk, and what it complains about."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.remote.webelement import WebElement

FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900", "--hide-scrollbars",
         "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--force-color-profile=srgb")  # fmt: skip
LOCAL = ("file:", "data:", "blob:", "about:", "chrome:")


class Browser:
    """A driver, with what tests of pages need."""

    def __init__(self, downloads: Path) -> None:
        for name in ("chromium", "chromedriver"):
            assert shutil.which(name), f"{name} is not installed; Debian's packages are chromium and chromium-driver"
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in FLAGS:
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(str(shutil.which("chromedriver"))))
        self.downloads = downloads

    def open(self, page: Path) -> None:
        self.driver.get_log("browser")  # forget what earlier pages have said
        self.driver.get_log("performance")
        self.driver.get(page.resolve().as_uri())

    def run(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements("css selector", selector)

    def pointer(self) -> ActionChains:
        return ActionChains(self.driver, duration=50)

    def wait_for(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        until = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < until, "the page did not get there"
            time.sleep(0.05)
        return found

    def wait_for_download(self, name: str) -> Path:
        path = self.downloads / name
        self.wait_for(lambda: path.is_file() and not list(self.downloads.glob("*.crdownload")))
        return path

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and addresses outside the page that were asked for."""
        console = [
            str(row["message"]) for row in self.driver.get_log("browser") if row["level"] in ("SEVERE", "WARNING")
        ]
        events = (json.loads(row["message"])["message"] for row in self.driver.get_log("performance"))
        asked = (
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        )
        return console + [url for url in asked if not url.startswith(LOCAL)]


@pytest.fixture(scope="session")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("downloads"))
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(_browser: Browser) -> Iterator[Browser]:
    """The browser; at the end of the test no page may have complained or asked for anything outside itself."""
    yield _browser
    assert not _browser.complaints()
