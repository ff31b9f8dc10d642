"""What is known of a source before it is decoded."""

from __future__ import annotations

import pytest

from supancl.data.opening import Survey, open_data, survey_data, survey_source
from supancl.data.splits import DataSpec
from tests.files import archive, class_folders, noise, picture, table


def survey(source, **settings) -> Survey:
    return survey_source(DataSpec(source=str(source), **settings))


@pytest.mark.parametrize(
    "settings", [{}, {"limit": 10}, {"holdout": 0.5}, {"labelled": 0.3}, {"leave_out": ("cat",), "labelled": 0.5}]
)
@pytest.mark.parametrize("each", [3, 12, 20])
def test_the_numbers_are_those_of_the_opened_data(each, settings, tmp_path):
    class_folders(tmp_path / "photos", each=each)
    for i in range(7):
        picture(tmp_path / "photos" / "unlabelled" / f"{i}.png", size=(8, 8))
    spec = DataSpec(source=str(tmp_path / "photos"), **settings)
    assert survey_source(spec) == survey_data(open_data(spec, 1))


def test_sources_of_every_kind(tmp_path):
    archive(tmp_path / "x.npz", train_images=noise(20, 9, 12, 3), test_images=noise(4, 9, 12, 3), test_labels=[0] * 4)
    assert survey(tmp_path / "x.npz") == Survey(images=20, labelled=20, classes=2, side=9)
    for i in range(4):
        picture(tmp_path / f"{i}.png", size=(20, 30))
    table(tmp_path / "x.csv", "path,label,split", "0.png,a,train", "1.png,b,train", "2.png,,train", "3.png,a,val")
    assert survey(tmp_path / "x.csv") == Survey(images=3, labelled=2, classes=2, side=20)
    assert survey("toy").side == 0  # vectors
    assert survey("digits") == Survey(images=1618, labelled=1618, classes=10, side=8)
