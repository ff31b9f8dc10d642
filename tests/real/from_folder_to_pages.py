"""From a folder of images to report, map and audit by documented lines alone: `make pages`, some minutes on two cores.

The images are generated. The README's lines for your own images and those of docs/audit.md run as they are. Then every
page that they have written is opened in headless Chromium. It must have a title and draw something, and neither
complain nor ask for anything outside itself.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.browser.conftest import Browser
from tests.browser.documented import AUDIT, check_pages, make_photos, photo_blocks
from tests.docs.blocks import ROOT, Runner, environment_of


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder, downloads = Path(temporary) / "user", Path(temporary) / "downloads"
        make_photos(folder / "photos", each=12, unlabelled=2)
        environment = environment_of(Path(sys.prefix), ROOT, OMP_NUM_THREADS=str(os.cpu_count()))
        environment["SUPANCL_CACHE"] = str(Path(temporary) / "cache")
        runner = Runner(folder, environment, shortened={})
        for block in photo_blocks():
            began = time.monotonic()
            print(runner.run(block), f"{block}: {time.monotonic() - began:.0f} s", sep="\n", flush=True)
        browser = Browser(downloads)
        try:
            paths = check_pages(browser, folder)
        finally:
            browser.driver.quit()
    expected = ("report", "map", *(["audit"] if AUDIT.exists() else []))
    missing = [name for name in expected if not any(name in path for path in paths)]
    print(f"no page of {', '.join(missing)}" if missing else f"fine: {', '.join(paths)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
