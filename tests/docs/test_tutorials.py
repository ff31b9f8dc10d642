"""Every tutorial's script runs on generated images from generated weights, and leaves what its page shows."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import supancl
from supancl.runs.encoder_file import save_encoder
from tests.docs.blocks import ROOT, environment_of

SCRIPTS = {
    "label": ([], ["labels.csv", "map.html"]),
    "adapt": (["1"], ["runs/adapted/report.html", "runs/adapted/evaluate/linear.json"]),
    "clean": ([], ["audit/audit.html", "audit/suspects.csv"]),
    "choose": (["1", "1"], ["runs/choice/comparison.html", "runs/choice/results.json"]),
    "to_timm": ([], ["model/model.safetensors", "alike.jpg"]),
    "own_loss": (["1"], ["runs/power/evaluate/linear.json"]),
}


def make_photos(folder: Path, each: int, unlabelled: int) -> None:
    """Class folders with drawn shapes in random colours on noise, and some without a label."""
    random = np.random.default_rng(0)
    for number, shape in enumerate(("ellipse", "rectangle", "line")):
        for index in range(each + unlabelled):
            image = Image.fromarray(random.integers(0, 90, (64, 64, 3), dtype=np.uint8))
            (x, y), colour = random.integers(4, 24, 2).tolist(), tuple(random.integers(120, 256, 3).tolist())
            getattr(ImageDraw.Draw(image), shape)((x, y, x + 34, y + 34), fill=colour)
            path = folder / (shape if index < each else "unlabelled")
            path.mkdir(parents=True, exist_ok=True)
            image.save(path / f"{number}-{index:03d}.png")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", each=12, unlabelled=4)
    (tmp_path / "start").mkdir()
    encoder = supancl.EncoderSpec("cnn", size=32).build().eval()
    save_encoder(tmp_path / "start" / "encoder.safetensors", encoder, (), "x")
    more, left = SCRIPTS[name]
    script = str(ROOT / "examples" / f"{name}.py")
    environment = environment_of(ROOT)
    done = subprocess.run([sys.executable, script, "photos", "start", *more], cwd=tmp_path, env=environment,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [name for name in left if not (tmp_path / name).stat().st_size] == []
    assert f"examples/{name}.py" in "".join(page.read_text() for page in (ROOT / "docs" / "tutorials").glob("*.md"))
