"""Losses, weights, statistics, momentum copy, optimizer and pool are those of one process, on 2 and on 4 ranks."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.distributed.cases import CASES, ON_FOUR, STEPS, outcome, trained
from tests.distributed.worker import FIRST, LAST, RESUMED, SECOND, of_ranks
from tests.helpers import flat

CLOSE = 1e-8
SIZES = (2, 4)


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="session")
def alone():
    """One process, trained once for each case that is asked for."""
    kept: dict = {}

    def of(name: str):
        if name not in kept:
            kept[name] = outcome(trained(CASES[name]))
        return kept[name]

    return of


@pytest.fixture(scope="session")
def on_two(folder: Path):
    states = {name: trained(CASES[name], steps=FIRST).state() for name in RESUMED}
    torch.save(states, folder / "one.pt")
    return launch(folder / "two", 2, folder / "one.pt")


@pytest.fixture(scope="session")
def on_four(folder: Path, on_two):
    return launch(folder / "four", 4, folder / "two" / "states.pt")


def launch(out: Path, size: int, before: Path):
    out.mkdir()
    ended = of_ranks([sys.executable, "-m", "tests.distributed.worker", str(out), str(before)], size, out)
    assert all(code == 0 for code, _ in ended), ended
    assert "Warning" not in "".join(said for _, said in ended)
    return torch.load(out / "made.pt", weights_only=False)


@pytest.fixture
def made(size: int, request):
    return request.getfixturevalue({2: "on_two", 4: "on_four"}[size])


EVERY = [
    pytest.param(size, name, id=f"{size} ranks, {name}")
    for size, names in ((2, CASES), (4, ON_FOUR)) for name in names
]  # fmt: skip


def assert_close(found, expected) -> None:
    found, expected = flat(found), flat(expected)
    assert found.keys() == expected.keys()
    assert len(found) > 8
    for name, value in expected.items():
        said = partial("{}: {}".format, name)
        torch.testing.assert_close(found[name], value, rtol=CLOSE, atol=CLOSE, msg=said)


def of_classes(pool):
    """Without the last row, where each rank writes what it does not keep."""
    return {key: value[:-1] if value.ndim else value for key, value in pool.items()}


@pytest.mark.parametrize("size", SIZES)
def test_gradients_may_travel_as_bf16(size: int, made) -> None:
    assert 0 < made["halved"]["apart"] < 0.02 * made["halved"]["moved"]


def test_compiled_ranks_whose_norms_are_their_own_train_as_those_that_are_not(on_two) -> None:
    made = on_two["compiled"]
    written, compiled = made["as written"], made["compiled"]
    assert compiled["losses"] == pytest.approx(written["losses"], abs=1e-4)
    assert len(set(written["losses"])) == 4
    assert written["graphs"] == [0, 0]
    assert min(compiled["graphs"]) > 0


@pytest.mark.parametrize(("size", "name"), EVERY)
def test_training_is_that_of_one_process(size: int, name: str, made, alone) -> None:
    found = dict(made[name])
    found.pop("fingerprints")
    expected = dict(alone(name))
    if CASES[name].settings.get("pool__sharded"):
        found["pool"], expected["pool"] = of_classes(found["pool"]), of_classes(expected["pool"])
    assert found["losses"].shape == (STEPS, 3)
    assert len(set(found["losses"][:, 0].tolist())) > STEPS // 2  # it really trains
    assert_close(found, expected)


@pytest.mark.parametrize(("size", "name"), EVERY)
def test_every_rank_has_the_same_bits(size: int, name: str, made) -> None:
    same = not CASES[name].settings.get("pool__sharded")  # of those each rank has its own
    assert len(made[name]["fingerprints"]) == size
    assert (len(set(made[name]["fingerprints"])) == 1) == same


@pytest.mark.parametrize("name", RESUMED)
def test_a_run_goes_on_with_another_number_of_ranks(name: str, on_two, on_four, alone) -> None:
    assert FIRST + SECOND + LAST == STEPS
    expected, found = dict(alone(name)), dict(on_four[f"resumed {name}"])
    if CASES[name].settings.get("pool__sharded"):
        found["pool"], expected["pool"] = of_classes(found["pool"]), of_classes(expected["pool"])
    torch.testing.assert_close(found.pop("losses"), expected.pop("losses")[-LAST:], rtol=CLOSE, atol=CLOSE)
    assert_close(found, expected)
    assert on_two[f"resumed {name}"]["step"] == FIRST + SECOND
