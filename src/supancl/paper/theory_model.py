"""The population of Assumptions 4.1-4.4, the shipped loss on samples of it, and the closed forms of Sec. 4 and App. A.

Everything is float64. A sample is either drawn (its moments have a Monte-Carlo error) or exact: a finite
sample whose empirical moments equal the population's, so that its mean is the expectation. The checks call the closed
forms as `model.NAME`, so that a test can replace one by a wrong one and see the checks fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from supancl.core.losses import Align
from supancl.core.pools import Queue

DTYPE = torch.float64


@dataclass(frozen=True)
class World:
    """Class means (C, d) and covariances (C, d, d) with total mean 0 and total covariance I, and sigma_e."""

    means: Tensor
    covariances: Tensor
    noise: float

    @property
    def between(self) -> Tensor:
        """S_B"""
        return self.means.mT @ self.means / len(self.means)

    @property
    def within(self) -> Tensor:
        """S_W"""
        return self.covariances.mean(0)

    @property
    def augmentation(self) -> Tensor:
        """S_e"""
        return self.noise**2 * torch.eye(self.means.shape[1], dtype=DTYPE)


def make_world(classes: int, width: int, noise: float, seed: int) -> World:
    """A population as general as the assumptions allow: every class has its own covariance."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(classes, width, generator=generator, dtype=DTYPE)
    means = means - means.mean(0)
    # the largest eigenvalue of S_B becomes 0.8, so that S_W = I - S_B stays positive definite
    means = means * math.sqrt(0.8 * classes) / torch.linalg.matrix_norm(means, 2)
    within = torch.eye(width, dtype=DTYPE) - means.mT @ means / classes
    shapes = torch.randn(classes, width, 2 * width, generator=generator, dtype=DTYPE)
    shapes = shapes @ shapes.mT
    # shapes average to I, so the covariances average to S_W
    level = _power(shapes.mean(0), -0.5)
    outer = _power(within, 0.5) @ level
    return World(means, outer @ shapes @ outer.mT, noise)


def make_weights(rows: int, columns: int, seed: int, scale: float = 1.0, basis: Tensor | None = None) -> Tensor:
    """A matrix of full rank with singular values between 0.5 and 1.5 times `scale`.

    Its right singular vectors are columns of `basis`, or random.
    """
    generator = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, rows, generator=generator, dtype=DTYPE)).Q
    right = torch.linalg.qr(torch.randn(columns, columns, generator=generator, dtype=DTYPE)).Q
    rank = min(rows, columns)
    values = scale * torch.linspace(0.5, 1.5, rank, dtype=DTYPE)
    right = right if basis is None else basis
    product: Tensor = (left[:, :rank] * values) @ right[:, :rank].mT
    return product


def make_predictor(rows: int, seed: int, scale: float = 1.0) -> Tensor:
    """Not symmetric, but close to a multiple of I, like a trained predictor."""
    return scale * torch.eye(rows, dtype=DTYPE) + 0.3 * make_weights(rows, rows, seed, scale)


@dataclass(frozen=True)
class Sample:
    """Two views (2, B, d) of inputs, and the inputs (P, d) whose targets fill the pool.

    `draws` is M of Eq. 2: None uses all targets of a class. For M = 1 without random draws, `labels` number the
    anchors and the pool holds one target per number.
    """

    views: Tensor
    labels: Tensor
    stored: Tensor
    stored_labels: Tensor
    classes: int
    draws: int | None


def draw_sample(world: World, size: int, seed: int) -> Sample:
    """`size` anchors and a pool of `size` others, classes drawn uniformly; one target per anchor (M = 1)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(world.means), (2, size), generator=generator)
    roots = torch.linalg.cholesky(world.covariances)
    latent = torch.randn(2, size, world.means.shape[1], generator=generator, dtype=DTYPE)
    inputs = world.means[labels]
    for label, root in enumerate(roots):
        inputs[labels == label] += latent[labels == label] @ root.mT
    # uniform, not Gaussian: the statements are about moments only
    noise = torch.rand(3, size, world.means.shape[1], generator=generator, dtype=DTYPE) * 2 - 1
    noise = noise * math.sqrt(3) * world.noise
    return Sample(inputs[0] + noise[:2], labels[0], inputs[1] + noise[2], labels[1], len(world.means), draws=1)


def exact_sample(world: World, seed: int, one_target_each: bool = False) -> Sample:
    """A sample with the moments of the population: views and pool, first and second moments, class by class.

    Independent variables (the input, the pool's input, three augmentations) become orthogonal columns.
    """
    generator = torch.Generator().manual_seed(seed)
    width, rows = world.means.shape[1], 6 * world.means.shape[1]
    columns = torch.randn(len(world.means), rows, 5 * width, generator=generator, dtype=DTYPE)
    columns = torch.linalg.qr(columns - columns.mean(1, keepdim=True)).Q * math.sqrt(rows)
    first, second, *noise = columns.split(width, dim=-1)
    roots = torch.linalg.cholesky(world.covariances).mT
    inputs = (world.means[:, None] + first @ roots).flatten(0, 1)
    others = (world.means[:, None] + second @ roots).flatten(0, 1)
    shifts = [world.noise * chunk.flatten(0, 1) for chunk in noise]
    views = torch.stack([inputs + shifts[0], inputs + shifts[1]])
    labels = torch.arange(len(world.means)).repeat_interleave(rows)
    if one_target_each:
        labels = torch.arange(len(labels))
    return Sample(views, labels, others + shifts[2], labels, int(labels.max()) + 1, draws=None)


class Features(NamedTuple):
    """Inputs of the loss: p = Wp z (2, B, k), z (2, B, k), the filled pool, and the sample with its labels."""

    anchors: Tensor
    targets: Tensor
    pool: Queue
    sample: Sample

    @property
    def other_view(self) -> Tensor:
        """z2 for the anchors of view 1 and the reverse, as `Align` pairs them."""
        return self.targets.flip(0)

    @property
    def supervised(self) -> Tensor:
        """z2sup."""
        return make_loss(0.5, self.sample).supervised_target(self.other_view, self.sample.labels, self.pool)

    def loss(self, alpha: float, form: Literal["cosine", "squared"] = "squared") -> Tensor:
        """The shipped loss."""
        return make_loss(alpha, self.sample, form)(self.anchors, self.targets, self.sample.labels, self.pool).total


def features(sample: Sample, w: Tensor, wp: Tensor, unit: bool = False, stop_gradient: bool = True) -> Features:
    """The linear model of Assumption 4.1; `unit` normalises as the library's branches do."""
    z = sample.views @ w.mT
    anchors = z @ wp.mT
    stored = sample.stored @ w.detach().mT
    if unit:
        z, anchors, stored = F.normalize(z, dim=-1), F.normalize(anchors, dim=-1), F.normalize(stored, dim=-1)
    pool = Queue(len(stored), w.shape[0], sample.classes).double()
    pool.push(stored, sample.stored_labels)
    return Features(anchors, z.detach() if stop_gradient else z, pool, sample)


def make_loss(alpha: float, sample: Sample, form: Literal["cosine", "squared"] = "squared") -> Align:
    return Align(alpha=alpha, form=form, samples=sample.draws)


def norm_squared(rows: Tensor) -> Tensor:
    """E ||row||^2, by the shipped distance to zero."""
    return Align(form="squared").distance(rows, torch.zeros_like(rows)).mean()


def shipped_lagrangian(sample: Sample, w: Tensor, wp: Tensor, alpha: float, lambda3: float = 1.0) -> Tensor:
    """The shipped squared loss plus (lambda3 - 1)(E ||Wp z1||^2 - 1).

    The squared form holds ||Wp z1||^2 once itself, so this is Eq. 5 with its lambda3, at lambda1 = alpha and
    lambda2 = 1 - alpha (which only weigh stop-gradient terms); lambda3 = 1 is the shipped loss alone.
    """
    outputs = features(sample, w, wp)
    return outputs.loss(alpha) + (lambda3 - 1) * (norm_squared(outputs.anchors) - 1)


def gradients(sample: Sample, w: Tensor, wp: Tensor, alpha: float, lambda3: float = 1.0) -> tuple[Tensor, Tensor]:
    """(dL/dWp, dL/dW) of the Lagrangian by autograd through the shipped loss."""
    w, wp = w.detach().requires_grad_(), wp.detach().requires_grad_()
    by_wp, by_w = torch.autograd.grad(shipped_lagrangian(sample, w, wp, alpha, lambda3), (wp, w))
    return by_wp, by_w


def _power(matrix: Tensor, exponent: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    product: Tensor = (vectors * values**exponent) @ vectors.mT
    return product


# --- closed forms, as printed unless a comment says otherwise ---------------------------------------------------------

SAMPLING_RATE = -0.5  # an error falls with the sample size to this power


def gap(z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The `const` of Eq. 4. The paper leaves it out; it is constant in p, but differs from sample to sample."""
    return alpha * (1 - alpha) * (z2 - z2_sup).square().sum(-1).mean()


def mix(z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The interpolated target of Eq. 4."""
    return alpha * z2 + (1 - alpha) * z2_sup


def expansion(anchors: Tensor, z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The last line of App. A.1's expansion with its sign put right."""
    return 2 - 2 * alpha * _inner(anchors, z2) - 2 * (1 - alpha) * _inner(anchors, z2_sup)


def printed_expansion(anchors: Tensor, z2: Tensor, z2_sup: Tensor, alpha: float) -> Tensor:
    """The same line as printed: + 2 (1 - alpha), a slip."""
    return 2 - 2 * alpha * _inner(anchors, z2) + 2 * (1 - alpha) * _inner(anchors, z2_sup)


def view_covariance(world: World, w: Tensor) -> Tensor:
    """E[z1 z1'] of Eq. 6."""
    return w @ (world.between + world.within + world.augmentation) @ w.mT


def cross_covariance(world: World, w: Tensor) -> Tensor:
    """E[z2 z1'] of Eq. 6."""
    return w @ (world.between + world.within) @ w.mT


def supervised_covariance(world: World, w: Tensor) -> Tensor:
    """E[z2sup z1'] of Eq. 6."""
    return w @ world.between @ w.mT


def lagrangian(world: World, w: Tensor, wp: Tensor, alpha: float, multipliers: tuple[float, float, float]) -> Tensor:
    """Eq. 5 with lambda1, lambda2 and lambda3, where z2 and (M = 1) z2sup are distributed as z1."""
    view, (lambda1, lambda2, lambda3) = view_covariance(world, w), multipliers
    return (
        2
        - 2 * alpha * torch.trace(wp.mT @ cross_covariance(world, w))
        - 2 * (1 - alpha) * torch.trace(wp.mT @ supervised_covariance(world, w))
        + (lambda1 + lambda2) * (torch.trace(view) - 1)
        + lambda3 * (torch.trace(wp.mT @ wp @ view) - 1)
    )


def spectra(world: World) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eq. 7: the common eigenvectors, and Lambda_B + Lambda_W + sigma_e^2 I, Lambda_B + Lambda_W and Lambda_B."""
    between, vectors = torch.linalg.eigh(world.between)
    within = 1 - between
    return vectors, between + within + world.noise**2, between + within, between


def commutator(world: World, w: Tensor) -> Tensor:
    """E[z1 z1'] E[z2sup z1'] - E[z2sup z1'] E[z1 z1']; not in the paper. Zero if W'W commutes with S_B."""
    gram = w.mT @ w
    return (1 + world.noise**2) * w @ (gram @ world.between - world.between @ gram) @ w.mT


def predictor_gradient(world: World, w: Tensor, wp: Tensor, alpha: float, lambda3: float) -> Tensor:
    """dL/dWp of App. A.3."""
    target_term = alpha * w @ w.mT + (1 - alpha) * w @ world.between @ w.mT
    return -2 * target_term + 2 * lambda3 * (1 + world.noise**2) * wp @ w @ w.mT


def encoder_gradient(world: World, w: Tensor, wp: Tensor, alpha: float, lambda3: float) -> Tensor:
    """dL/dW of App. A.4."""
    target_term = alpha * wp.mT @ w + (1 - alpha) * wp.mT @ w @ world.between
    return -2 * target_term + 2 * lambda3 * (1 + world.noise**2) * wp.mT @ wp @ w


def optimal_predictor(world: World, w: Tensor, alpha: float, lambda3: float) -> Tensor:
    """Wp* of Theorem 4.6."""
    between, vectors = torch.linalg.eigh(world.between)
    within = 1 - between
    values = (between + alpha * within) / (between + within + world.noise**2)
    inner: Tensor = (vectors * values) @ vectors.mT
    inverse: Tensor = torch.linalg.pinv(w)
    return w @ inner @ inverse / lambda3


def coefficients(alpha: float) -> tuple[float, float, float]:
    """Of S_B, S_W and S_e in lambda3 Wp* E[z1 z1'] = W (S_B + alpha S_W) W'."""
    return 1.0, alpha, 0.0


def gain(between: Tensor, alpha: float, noise: float, lambda3: float) -> Tensor:
    """The factor by which Wp* scales W v, for an eigenvector v of S_B in the row space of W, by its eigenvalue."""
    return (between + alpha * (1 - between)) / (1 + noise**2) / lambda3


def rank(world: World, alpha: float, rows: int) -> int:
    """Of Wp*: at alpha = 0 only the span of the C - 1 independent class means is left."""
    return min(rows, len(world.means) - 1) if alpha == 0 else rows


def curvature(world: World, w: Tensor, lambda3: float) -> Tensor:
    """The smallest eigenvalue of the Hessian in Wp; not in the paper. Zero unless W has full row rank."""
    least: Tensor = torch.linalg.eigvalsh(w @ w.mT)[0]
    return 2 * lambda3 * (1 + world.noise**2) * least


def multiplier(world: World, w: Tensor, alpha: float) -> float:
    """The lambda3 > 0 at which Wp* meets the constraint E ||Wp z1||^2 = 1; the paper leaves it open."""
    wp = optimal_predictor(world, w, alpha, 1.0)
    return math.sqrt(torch.trace(wp @ view_covariance(world, w) @ wp.mT).item())


def aligned_sides(wp: Tensor, w: Tensor, by_wp: Tensor, by_w: Tensor) -> tuple[Tensor, Tensor]:
    """The two sides of Wp' dL/dWp = dL/dW W' (App. A.4)."""
    return wp.mT @ by_wp, by_w @ w.mT


def leak(world: World, w: Tensor, wp: Tensor, alpha: float) -> Tensor:
    """dL/dW W' - Wp' dL/dWp when the gradient also flows through z2 and the batch's class mean; not in the paper."""
    identity_minus_wp = torch.eye(len(wp), dtype=DTYPE) - wp
    unsupervised_leak = view_covariance(world, w) - wp @ cross_covariance(world, w)
    return 2 * alpha * unsupervised_leak + 2 * (1 - alpha) * identity_minus_wp @ supervised_covariance(world, w)


def decay_rate(weight_decay: float) -> float:
    """Of ||Wp'Wp - WW'|| along the flow of App. A.4."""
    return 2 * weight_decay


def _inner(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum(-1).mean()
