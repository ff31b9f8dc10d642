"""What lies beside a path that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from supancl.data.sources import DataSpec, open_data
from supancl.errors import BadInput
from supancl.files import beside
from supancl.importing import open_encoder


def test_a_slip_in_a_path_is_answered_with_what_lies_beside_it(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert beside("photo") == "; did you mean 'photos'?"
    assert beside(tmp_path / "phtos") == f"; did you mean {str(tmp_path / 'photos')!r}?"
    assert beside("nothing/like/it") == beside("birds") == beside("a\0b") == ""
    with pytest.raises(BadInput, match=r"no data at 'photo'; did you mean 'photos'\?$"):
        open_data(DataSpec(source="photo"), 3)
    with pytest.raises(BadInput, match=r"no data at 'digit'; did you mean 'digits'\?$"):
        open_data(DataSpec(source="digit"), 3)
    with pytest.raises(BadInput, match=r"no file photoss; did you mean 'photos'\?$"):
        open_encoder("photoss")
