"""The solver against scipy's minimum of the objective as it is written down."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize

from supancl.probes import Features
from supancl.probes.linear import Standardized
from supancl.probes.logistic import (
    LbfgsMemory,
    Problem,
    solve,
    solve_path,
)
from tests.probes.blobs import blobs


def written_down(values: torch.Tensor, labels: torch.Tensor, classes: int, weight: float, theta: np.ndarray):
    """Summed cross-entropy + weight ||W, b||^2 and its gradient, by autograd on the raw features."""
    parameters = torch.from_numpy(theta.copy()).view(classes, -1).requires_grad_()
    logits = values.double() @ parameters[:, :-1].T + parameters[:, -1]
    loss = F.cross_entropy(logits, labels, reduction="sum") + weight * parameters.square().sum()
    loss.backward()
    return float(loss.detach()), parameters.grad.flatten().numpy()


def minimum(values: torch.Tensor, labels: torch.Tensor, classes: int, weight: float):
    start = np.zeros(classes * (values.shape[1] + 1))
    found = minimize(
        lambda theta: written_down(values, labels, classes, weight, theta),
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30},
    )
    return found.fun, torch.from_numpy(found.x).view(classes, -1)


def rotated(features, dtype=torch.float64, classes=4):
    space = Standardized(features.values, dtype, scales=False)
    return Problem(space.rows(features.values, dtype), features.labels, classes), space.axes


@pytest.mark.parametrize("shape", [(60, 6), (12, 30)], ids=["more images", "more features"])
@pytest.mark.parametrize("weight", [1e-3, 0.1, 10.0, 1e4])
def test_the_optimum_is_that_of_scipy(shape: tuple[int, int], weight: float) -> None:
    features = blobs(shape[0], width=shape[1])
    problem, axes = rotated(features)
    found = solve(problem, weight, tolerance=1e-7)
    value, parameters = minimum(features.values, features.labels, 4, weight)
    assert found.penalized_loss == pytest.approx(value, rel=1e-8)
    close = 1e-6 + 1e-4 * float(parameters.abs().max())
    torch.testing.assert_close(found.parameters @ axes.T, parameters, rtol=1e-3, atol=close)
    assert found.residual <= 1e-6


def test_a_path_holds_the_optima_of_its_weights_in_float32() -> None:
    features = blobs(200, noise=0.5)
    problem, _ = rotated(features, torch.float32)
    exact, _ = rotated(features)
    weights = [10.0**power for power in np.linspace(-5, 4, 19)]
    found = list(solve_path(problem, weights, tolerance=0.01))
    assert [s.weight for s in found] == sorted(weights, reverse=True)
    for solution in found:
        best = solve(exact, solution.weight, tolerance=1e-6)
        assert solution.penalized_loss == pytest.approx(best.penalized_loss, rel=1e-4)


def test_a_solution_that_ran_out_of_iterations_far_from_its_optimum_says_so() -> None:
    features = blobs(400, noise=0.2)
    problem, _ = rotated(features, torch.float32)
    whole = solve(problem, 1e-6, tolerance=0.05)
    assert not whole.cut_off
    short = solve(problem, 1e-6, tolerance=0.05, max_iterations=whole.iterations // 2)
    assert short.cut_off
    assert short.penalized_loss > 1.01 * whole.penalized_loss
    assert not solve(problem, 1e-6, whole.parameters, tolerance=0.05, max_iterations=0).cut_off  # it is there already
    noise = Problem(torch.randn(400, 6, generator=torch.Generator().manual_seed(0)), features.labels, 4)
    found = solve(noise, 1e-6, tolerance=0.05)
    assert found.residual > 100  # a ridge that hardly matters: far by its bound, but solved
    assert not found.cut_off
    huge, _ = rotated(blobs(400, width=64, noise=1.5), torch.float32)
    huge.rows *= 1e3
    assert solve(huge, 1e-6, tolerance=0.05, max_iterations=30).cut_off


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_strong_ridge_on_small_features_answers_as_its_optimum_does(scale: float, offset: float) -> None:
    """There the objective hardly falls below that of no parameters, which answer the first class to everything."""
    features = blobs(400, width=20, noise=2.0)
    unit = F.normalize(features.values - features.values.mean(0), dim=1)
    small = Features(scale * unit + offset / 20**0.5, features.labels)
    problem, _ = rotated(small, torch.float32)
    exact, _ = rotated(small)
    for solution in solve_path(problem, [10.0**power for power in range(-1, 6)], tolerance=0.05):
        best = solve(exact, solution.weight, tolerance=1e-8, max_iterations=5000)
        agree = (solution.parameters @ problem.rows.T).argmax(0) == (best.parameters @ exact.rows.T).argmax(0)
        assert agree.double().mean() >= 0.97, solution.weight


def test_the_slope_and_the_curvature_are_those_of_autograd() -> None:
    features = blobs(20)
    problem, _ = rotated(features)
    parameters = torch.randn(4, problem.rows.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(some: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(problem.rows @ some.T, features.labels, reduction="sum")

    found = problem.slope(problem.margins(parameters))
    hessian = torch.autograd.functional.hessian(loss, parameters).reshape(parameters.numel(), -1)
    assert found.loss == pytest.approx(float(loss(parameters)))
    torch.testing.assert_close(problem.gradient(found.residual), torch.func.grad(loss)(parameters))
    torch.testing.assert_close(problem.curvature(found.residual, chunk=7).flatten(), hessian.diagonal())
    direction = torch.randn(parameters.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    product = problem.hessian_product(found.residual, direction).flatten()
    torch.testing.assert_close(product, hessian @ direction.flatten())


def test_pairs_of_the_memory_hold_the_ridge_of_its_weight() -> None:
    step, change = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    memory = LbfgsMemory(weight=0.5)
    memory.add(step, change)
    memory.move(0.25, factor=3.0)
    ((_, found, product),) = memory.pairs
    torch.testing.assert_close(found, 3 * change + 2 * 0.25 * step)
    torch.testing.assert_close(product, found @ step)
