"""Pictures of names that matplotlib would read otherwise, and of features that t-SNE makes nothing of."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from supancl.probes import Features
from supancl.reports.pictures import (
    Panel,
    class_styles,
    draw_detection_curves,
    draw_panels,
    loss_curves,
    tsne_map,
    tsne_panels,
)

FORMULA = "US$_to_$5"  # between its dollars there is half a formula


def features(labels: list[int], seed: int = 0) -> Features:
    return Features(torch.randn(len(labels), 4, generator=torch.Generator().manual_seed(seed)), torch.tensor(labels))


@pytest.fixture
def legend(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of the figure's legend."""
    words: list[str] = []
    original = Figure.legend
    monkeypatch.setattr(
        Figure,
        "legend",
        lambda self, handles, names, **more: words.extend(names) or original(self, handles, names, **more),
    )
    return words


def test_no_picture_fails_for_a_name(tmp_path: Path) -> None:
    rows = [
        {"kind": kind, "step": 1, "loss": 1.0, "ssl": 1.0, "knn": 2.0, "AP": 3.0}
        for kind in ("train", "monitor", "test")
    ]
    loss_curves({FORMULA: rows}, tmp_path / "loss.png")
    draw_detection_curves({FORMULA: rows, "_b": rows}, tmp_path / "detection.png")
    assert len(list(tmp_path.glob("*.png"))) == 2


def test_images_without_a_label_are_grey_and_come_last(tmp_path: Path, legend: list[str]) -> None:
    tsne_panels({"one": features([-1, -1, 0, 0, 1, 1])}, ("a", "b"), tmp_path / "x.png")
    assert legend == ["a", "b", "unlabelled"]
    styles = class_styles({"": range(-1, 80)})
    assert styles[-1] not in [styles[label] for label in range(80)]


def test_a_legend_lies_within_its_picture(tmp_path: Path) -> None:
    """Names as long as a sentence once began and ended outside of a single map."""
    names = [f"{'long ' * length}name {length}" for length in (1, 14, 40)]
    labels = np.arange(3)
    draw_panels([Panel("map", np.stack([labels, labels], 1), labels)], names, tmp_path / "x.png")
    pixels = np.asarray(Image.open(tmp_path / "x.png").convert("L"))
    assert pixels[:, :4].min() == pixels[:, -4:].min() == 255


@pytest.mark.parametrize("values", [torch.zeros(0, 4), torch.ones(1, 4), torch.randn(2, 4), torch.zeros(40, 4)])
def test_what_cannot_be_laid_out_is_one_point(values: torch.Tensor, tmp_path: Path) -> None:
    """Too few images, or a collapsed encoder: no reason to lose a page at the end of a study."""
    alike = Features(values, torch.zeros(len(values), dtype=torch.long))
    assert np.array_equal(tsne_map(alike), np.zeros((len(values), 2)))
    tsne_panels({"alpha = 0": alike}, ("a",), tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 0
