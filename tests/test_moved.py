"""Import paths of 0.1.0 lead to where their names are now, and say so."""

import sys
from importlib import import_module

import pytest

import supancl
from supancl import moved


@pytest.mark.parametrize("old", [f"supancl.{name}" for name in (*moved.RENAMED_MODULES, *moved.DIVIDED_MODULES)])
def test_an_old_path_still_imports_with_a_warning(old, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {moved.new_path(old)}"):
        found = import_module(old)
    parts = moved.DIVIDED_MODULES.get(old.removeprefix("supancl."), ())
    for part in parts:
        its_own = {name for name, value in vars(import_module(f"supancl.{part}")).items()
                   if getattr(value, "__module__", "") == f"supancl.{part}" and not name.startswith("_")}  # fmt: skip
        assert its_own
        assert its_own <= set(vars(found))


def test_a_folder_that_an_older_checkout_left_behind_does_not_hide_the_new_path(tmp_path, monkeypatch):
    (tmp_path / "judge" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(supancl, "__path__", [*supancl.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "supancl.judge", raising=False)
    with pytest.warns(DeprecationWarning, match="supancl.judge is now supancl.evaluate"):
        assert import_module("supancl.judge").EvaluatedEncoder


def test_an_old_module_as_an_attribute_warns_where_it_is_used(monkeypatch):
    monkeypatch.delitem(sys.modules, "supancl.pools", raising=False)
    vars(supancl).pop("pools", None)
    with pytest.warns(DeprecationWarning, match=r"supancl\.pools is now supancl\.core\.pools") as said:
        assert supancl.pools.Queue
    assert [one.filename for one in said] == [__file__]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_below_an_old_package_are_the_new_ones():
    from supancl.importing import formats
    from supancl.judge import naming

    assert formats is import_module("supancl.weights.formats")
    assert naming is import_module("supancl.evaluate.naming")


def test_a_reporter_of_0_1_0_is_still_called() -> None:
    with pytest.warns(DeprecationWarning, match="Old.stepped is called on_step"):

        class Old(supancl.Reporter):
            def stepped(self, step, row):
                self.last = step

    old = Old()
    old.on_step(3, None)
    assert old.last == 3


def test_a_reporter_of_0_1_0_may_call_the_method_it_overrides() -> None:
    class Base(supancl.Reporter):
        def on_step(self, step, row):
            self.last = step

    with pytest.warns(DeprecationWarning, match="Old.stepped is called on_step"):

        class Old(Base):
            def stepped(self, step, row):
                super().stepped(step, row)

    old = Old()
    old.on_step(3, None)
    assert old.last == 3


def test_a_reporter_with_both_names_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    class Both(supancl.Reporter):
        def on_end(self):
            self.ended = True

        ends = on_end

    both = Both()
    both.on_end()
    assert both.ended
    assert not recwarn
