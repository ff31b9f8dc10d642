"""Each check of the theory holds, fails for a wrong formula, and fails for a wrong loss."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from supancl.cli import main
from supancl.core.losses import Align
from supancl.paper import theory_checks, theory_model
from supancl.paper import theory_theorems as theory
from supancl.paper.theory_checks import Check, Settings, compare, worst_of_each
from supancl.paper.theory_model import exact_sample, features, make_world
from tests.helpers import assert_refused

SETTINGS = Settings(seed=0, samples=2000)
FOLLOW = theory.follow
ORIGINAL = argparse.Namespace(**vars(theory_model))  # while a test replaces one

# field of Formulas -> (group that uses it, deliberately wrong versions)
WRONG: dict[str, tuple[str, list[Any]]] = {
    "gap": ("two forms", [lambda own, sup, alpha: 1.01 * ORIGINAL.gap(own, sup, alpha)]),
    "mix": ("two forms", [lambda own, sup, alpha: (1 - alpha) * own + alpha * sup + 0.01]),
    "expansion": ("expansion", [ORIGINAL.printed_expansion]),
    "lagrangian": (
        "expectation",
        [lambda world, w, wp, alpha, m: ORIGINAL.lagrangian(world, w, wp, alpha, m) * 1.05],
    ),
    "view_covariance": ("covariances", [lambda world, w: w @ (world.between + world.within) @ w.mT]),
    "cross_covariance": ("covariances", [lambda world, w: w @ (world.within + world.augmentation) @ w.mT]),
    "supervised_covariance": ("covariances", [lambda world, w: w @ (world.between + 0.2 * world.within) @ w.mT]),
    "spectra": ("eigenspaces", [lambda world: _rolled(ORIGINAL.spectra(world))]),
    "commutator": ("eigenspaces", [lambda world, w: ORIGINAL.commutator(world, w) + 0.01]),
    "optimal_predictor": (
        "optimum conditions",
        [lambda world, w, alpha, lambda3: ORIGINAL.optimal_predictor(world, w, 0.8 * alpha + 0.05, lambda3)],
    ),
    "coefficients": ("optimum coefficients", [lambda alpha: (1.0, alpha, 0.01)]),
    "gain": ("gains", [lambda between, alpha, noise, lambda3: (between + alpha * (1 - between)) / lambda3]),
    "rank": ("optimum", [lambda world, alpha, rows: rows - 1 if alpha else len(world.means)]),
    "curvature": ("conditions", [lambda world, w, lambda3: ORIGINAL.curvature(world, w, lambda3) + 0.01]),
    "multiplier": ("conditions", [lambda world, w, alpha: 1.0]),
    "predictor_gradient": (
        "closed gradients",
        [lambda world, w, wp, alpha, l3: ORIGINAL.predictor_gradient(world, w, wp.mT, alpha, l3)],
    ),
    "encoder_gradient": (
        "closed gradients",
        [lambda world, w, wp, alpha, l3: ORIGINAL.encoder_gradient(world, w, wp.mT, alpha, l3)],
    ),
    "aligned_sides": (
        "aligned gradients",
        # the factors in the wrong order; and a comparison of a thing with itself, which can never fail
        [lambda wp, w, by_wp, by_w: (by_wp @ wp.mT, by_w @ w.mT), lambda wp, w, by_wp, by_w: (by_wp, by_wp)],
    ),
    "leak": ("aligned gradients", [lambda world, w, wp, alpha: ORIGINAL.leak(world, w, wp.mT, alpha)]),
    "decay_rate": ("decay", [lambda weight_decay: 2 * weight_decay + 0.02]),
    "SAMPLING_RATE": ("expectation covariances conditions", [-1.0]),
}


def _rolled(spectra: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Eigenvectors of some other matrix; the first two eigenvalue lists are constant, so they are changed as well."""
    vectors, view, cross, supervised = spectra
    random = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return torch.linalg.qr(random).Q, view + 0.01, cross + 0.01, supervised


def groups_of(names: str) -> list[str]:
    """Group names hold blanks themselves."""
    found = [group for group in theory.GROUPS if group in names]
    assert found
    return [group for group in found if not any(group != other and group in other for other in found)]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer samples, and a flow is solved once: a wrong formula changes what is predicted, not what is measured."""
    monkeypatch.setattr(theory_checks, "REPEATS", 16)
    monkeypatch.setattr(theory, "follow", lambda flow, world, seed: flow_of(flow, seed))


@cache
def flow_of(flow: theory.Flow, seed: int) -> theory.Path:
    return FOLLOW(flow, make_world(3, 5, 0.5, seed), seed)


@cache
def checks_of(group: str) -> list[Check]:
    return list(theory.GROUPS[group](SETTINGS))


@cache
def failures_of(field: str) -> list[set[tuple[str, str]]]:
    """For each wrong version of a formula, the checks that it fails."""
    names, versions = WRONG[field]
    found = []
    for version in versions:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(theory_model, field, version)
            checks = [check for group in groups_of(names) for check in theory.GROUPS[group](SETTINGS)]
        found.append({(check.statement, check.quantity) for check in checks if check.passed is False})
    return found


@pytest.mark.parametrize("group", theory.GROUPS)
def test_every_check_holds(group: str) -> None:
    checks = checks_of(group)
    assert checks
    assert [check for check in checks if check.passed is False] == []
    assert any(check.asserted for check in checks) or group == "distances"


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_formula_fails(field: str) -> None:
    assert all(failures_of(field))


def test_every_check_fails_for_some_wrong_formula() -> None:
    asserted = {
        (check.statement, check.quantity) for group in theory.GROUPS for check in checks_of(group) if check.asserted
    }
    noticed = set().union(*(failed for field in WRONG for failed in failures_of(field)))
    assert asserted - noticed == set()


def halved_distance(self: Align, anchors: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (anchors - targets).square().sum(-1)


def unit_mean(self: Align, own: Tensor, labels: Tensor, pool: Any, global_batch: Any = None) -> Tensor:
    return torch.nn.functional.normalize(pool.class_mean(labels, fallback=own, samples=self.samples), dim=-1)


@pytest.mark.parametrize(
    ("name", "wrong", "group"),
    [
        ("distance", halved_distance, "expectation"),
        ("distance", halved_distance, "eigenspaces"),
        ("distance", halved_distance, "closed gradients"),
        ("supervised_target", unit_mean, "coefficients"),
        ("supervised_target", unit_mean, "optimum"),
    ],
)
def test_a_wrong_loss_fails(
    name: str, wrong: Callable[..., Tensor], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is verified is the shipped loss: change it, and the checks notice."""
    monkeypatch.setattr(Align, name, wrong)
    assert any(check.passed is False for check in theory.GROUPS[group](SETTINGS))


def test_a_target_without_stop_gradient_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosine row is fed by `features`; let the gradient flow there, and the identity must break."""

    def flowing(*args: Any, **options: Any) -> Any:
        return features(*args, **{**options, "stop_gradient": False})

    monkeypatch.setattr(theory_checks, "features", flowing)
    failed = {check.quantity for check in theory_checks.aligned_gradients(SETTINGS) if check.passed is False}
    assert failed == {"the same, cosine loss on unit-norm features"}


@pytest.mark.parametrize("one_target_each", [False, True])
def test_an_exact_sample_has_the_moments_of_the_population(one_target_each: bool) -> None:
    world = make_world(3, 4, 0.7, 5)
    sample = exact_sample(world, 5, one_target_each)
    size = len(sample.labels)
    first, second = sample.views
    assert torch.allclose(world.between + world.within, torch.eye(4, dtype=torch.float64))
    assert torch.allclose(world.means.sum(0), torch.zeros(4, dtype=torch.float64))
    assert torch.allclose(first.mT @ first / size, (1 + 0.7**2) * torch.eye(4, dtype=torch.float64))
    assert torch.allclose(second.mT @ first / size, torch.eye(4, dtype=torch.float64))
    assert torch.allclose(sample.stored.mT @ first / size, world.between)
    assert not torch.allclose(world.covariances[0], world.covariances[1])


def test_a_check_that_is_not_a_number_fails_and_is_the_worst() -> None:
    good = compare("s", "q", torch.ones(()), torch.ones(()), tolerance=0.1)
    bad = compare("s", "q", torch.ones(()), torch.tensor(math.nan), tolerance=0.1)
    assert good.passed is True
    assert bad.passed is False
    assert [check.passed for check in worst_of_each([good, bad, good])] == [False]


def test_a_failed_check_ends_the_command_with_1_and_still_writes_the_json(monkeypatch, tmp_path, capsys) -> None:
    failing = Check("Eq. 4", "E[z1 z1']", 1.0, 2.0, 1.0, 0.1)
    groups = {"expansion": theory_checks.expansion, "one": lambda settings: [failing]}
    monkeypatch.setattr(theory, "GROUPS", groups)
    assert main(["paper", "theory", "--json", str(tmp_path / "theory.json")]) == 1
    result = json.loads((tmp_path / "theory.json").read_text())
    assert (result["passed"], len(result["checks"])) == (False, 3)
    said = capsys.readouterr()
    assert_refused(said.err, "1 of 2 checks", "Eq. 4", "E[z1 z1']")
    assert "last line as printed" in said.out
