import pytest

from supancl import METHODS
from tests.golden import FOLDER, ten_losses


@pytest.mark.parametrize("method", METHODS)
def test_ten_steps_reproduce_the_golden_losses(method: str) -> None:
    golden = [float(line) for line in (FOLDER / f"{method}.txt").read_text().split()]
    losses = ten_losses(method)
    assert len(golden) == len(losses) == 10
    assert losses == pytest.approx(golden, rel=1e-4)


def test_the_golden_losses_tell_the_methods_apart() -> None:
    texts = [(FOLDER / f"{method}.txt").read_text() for method in METHODS]
    assert len(set(texts)) == len(METHODS)
