"""Two checkouts beside each other: the pairs of processes run, and the ratio is the second's over the first's."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.files import mentions

ROOT = Path(__file__).parents[2]
TINY = ["--device", "cpu", "--tiny", "--networks", "cifar-resnet18", "--rounds", "2", "--seconds", "0", "--starts", "1"]


@pytest.fixture(scope="module")
def two_trees() -> ModuleType:
    where = importlib.util.spec_from_file_location("two_trees", ROOT / "experiments" / "benchmarks" / "two_trees.py")
    module = importlib.util.module_from_spec(where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "two_trees", module)  # its dataclasses look themselves up
        where.loader.exec_module(module)
    return module


def test_a_pair_of_processes_takes_turns(two_trees: ModuleType, tmp_path: Path, capsys) -> None:
    kept = tmp_path / "rates.json"
    found = two_trees.main(["--trees", str(ROOT), str(ROOT), *TINY, "--json", str(kept)])
    ((first, second),) = found["cifar-resnet18"]
    assert all(rate > 0 for rate in (*first, *second))
    assert "cifar-resnet18" in capsys.readouterr().out
    assert kept.read_text().startswith('{"trees": [')


def test_a_tree_whose_package_is_not_the_one_imported_is_refused(two_trees: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(RuntimeError, match=mentions("cifar-resnet18", f"{tmp_path}")):
        two_trees.main(["--trees", str(tmp_path), str(ROOT), *TINY])


def test_the_ratio_is_of_neighbouring_turns(two_trees: ModuleType) -> None:
    text = two_trees.table(
        [Path("a"), Path("b")], {"resnet50": [[[100.0, 110.0], [200.0, 180.0]], [[100.0, 100.0], [100.0, 101.0]]]}
    )
    (line,) = [line for line in text.splitlines() if line.startswith("resnet50")]
    assert line.split() == ["resnet50", "100", "106", "1.0050", "0.9000", "-", "1.1000", "1.0000,", "1.0050"]
