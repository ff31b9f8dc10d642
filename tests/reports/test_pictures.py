"""Pictures of names that matplotlib would read otherwise, and of features that t-SNE makes nothing of."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from supancl import from_arrays
from supancl.probes import Features
from supancl.reports.alpha_page import _unbroken_flags
from supancl.reports.contact_sheet import draw_image_sheet
from supancl.reports.detections import draw_detection_curves
from supancl.reports.fonts import make_drawable
from supancl.reports.legends import MAX_NAMED, lay_out_legend
from supancl.reports.pictures import (
    Panel,
    default_styles,
    draw_panels,
    escape_label,
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


def test_names_are_shown_as_they_are_spelled(tmp_path: Path, legend: list[str]) -> None:
    classes = (FORMULA, "_hidden", "two\nlines")
    tsne_panels({FORMULA: features([0, 1, 2] * 3)}, classes, tmp_path / "tsne.png")
    assert legend == [r"US\$_to_\$5", " _hidden", r"two\nlines"]
    text = Figure().text(0, 0, escape_label(FORMULA))
    assert text._preprocess_math(text.get_text()) == (FORMULA, False)


def test_no_picture_fails_for_a_name(tmp_path: Path) -> None:
    rows = [
        {"kind": kind, "step": 1, "loss": 1.0, "ssl": 1.0, "knn": 2.0, "AP": 3.0}
        for kind in ("train", "monitor", "test")
    ]
    loss_curves({FORMULA: rows}, tmp_path / "loss.png")
    draw_detection_curves({FORMULA: rows, "_b": rows}, tmp_path / "detection.png")
    assert len(list(tmp_path.glob("*.png"))) == 2


def test_a_class_of_one_map_alone_is_in_the_legend(tmp_path: Path, legend: list[str]) -> None:
    tsne_panels({"one": features([0, 0, 1, 1]), "two": features([1, 1, 2, 2])}, ("a", "b", "c"), tmp_path / "x.png")
    assert legend == ["a", "b", "c"]


def test_images_without_a_label_are_grey_and_come_last(tmp_path: Path, legend: list[str]) -> None:
    tsne_panels({"one": features([-1, -1, 0, 0, 1, 1])}, ("a", "b"), tmp_path / "x.png")
    assert legend == ["a", "b", "unlabelled"]
    styles = default_styles(range(-1, 80))
    assert styles[-1] not in [styles[label] for label in range(80)]


def test_many_classes_have_numbers_and_very_many_only_their_count(tmp_path: Path, legend: list[str]) -> None:
    names = tuple(f"n{number}" for number in range(MAX_NAMED + 1))
    for count in (21, MAX_NAMED + 1):
        labels = np.arange(count)
        draw_panels([Panel("map", np.stack([labels, labels], 1), labels)], names, tmp_path / "x.png")
    assert legend[:21] == [f"{number}  n{number}" for number in range(21)]
    assert legend[21:] == [f"{MAX_NAMED + 1} classes, too many to name"]


def test_a_legend_lies_within_its_picture(tmp_path: Path) -> None:
    """Names as long as a sentence once began and ended outside of a single map."""
    names = [f"{'long ' * length}name {length}" for length in (1, 14, 40)]
    labels = np.arange(3)
    draw_panels([Panel("map", np.stack([labels, labels], 1), labels)], names, tmp_path / "x.png")
    pixels = np.asarray(Image.open(tmp_path / "x.png").convert("L"))
    assert pixels[:, :4].min() == pixels[:, -4:].min() == 255
    legend = lay_out_legend({"": [0, 1, 2]}, dict(enumerate(names)), (4.2, 15.0), 10.0)
    assert 4.2 < legend.width <= 15
    assert [text for text, _ in legend.entries[:2]] == names[:2]
    assert "…" in legend.entries[2][0]
    assert legend.entries[2][0].endswith("name 40")


def test_letters_without_a_font_are_shown_as_codes() -> None:
    assert make_drawable(f"Ä ж ز {chr(0xF8FE)}") == r"Ä ж ز \uf8fe"


def test_captions_of_a_sheet_differ_by_their_letters(tmp_path: Path) -> None:
    """Letters beyond ASCII were all drawn as the same box."""
    pixels = np.zeros((8, 8, 8, 3), np.uint8)
    drawn = []
    for text in ("ä", "ö", "ж", "ж" * 40):
        data = from_arrays(pixels, [0] * 8, classes=[text])
        draw_image_sheet(data.train, data.classes, tmp_path / "x.png", count=1)
        drawn.append((tmp_path / "x.png").read_bytes())
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("values", [torch.zeros(0, 4), torch.ones(1, 4), torch.randn(2, 4), torch.zeros(40, 4)])
def test_what_cannot_be_laid_out_is_one_point(values: torch.Tensor, tmp_path: Path) -> None:
    """Too few images, or a collapsed encoder: no reason to lose a page at the end of a study."""
    alike = Features(values, torch.zeros(len(values), dtype=torch.long))
    assert np.array_equal(tsne_map(alike), np.zeros((len(values), 2)))
    tsne_panels({"alpha = 0": alike}, ("a",), tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 0


def test_a_flag_on_a_page_is_not_broken_between_its_hyphens() -> None:
    """A narrow browser window once showed "run with -" and on the next line "-seeds 3"."""
    shown = _unbroken_flags("a < b; run with --seeds 3 or --leave-out 0, in-domain")
    kept = '<code style="white-space: nowrap">{}</code>'
    assert shown == f"a &lt; b; run with {kept.format('--seeds')} 3 or {kept.format('--leave-out')} 0, in-domain"
