"""What is known of a source before it is decoded."""

from __future__ import annotations

import pytest

from supancl.data.opening import Survey, open_data, survey_data, survey_source
from supancl.data.splits import DataSpec
from tests.files import class_folders, picture


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
