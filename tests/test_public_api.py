"""`__all__` is the public API; a change of it is a decision, so the list is kept here."""

from pathlib import Path

import supancl

LISTED = Path(__file__).with_name("public_api.txt").read_text().split()


def test_the_public_names_are_the_committed_list() -> None:
    assert sorted(supancl.__all__) == sorted(LISTED)


def test_every_public_name_exists_and_is_documented() -> None:
    for name in supancl.__all__:
        value = getattr(supancl, name)
        assert value.__doc__, name
