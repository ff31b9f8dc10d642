"""For step.py: the peers. lightly's SimSiam, BYOL and SimCLR from its published parts, and the released code's step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from step_ours import Contender, Peak
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from supancl.core.specs import MLP
from supancl.data.splits import Data
from supancl.data.views.specs import Crops
from supancl.recipes import Recipe

Views = tuple[Tensor, Tensor]
FORMS = (("fp32", False), ("bf16", True))  # precision, channels_last: the faster one counts


# --- lightly ----------------------------------------------------------------------------------------------------------


class InMemory(Dataset[Any]):
    """Images as arrays in memory, given out as Pillow's, as torchvision's CIFAR does."""

    def __init__(self, data: Data) -> None:
        pixels = data.train.batch(torch.arange(len(data.train))).pixels
        self.arrays: np.ndarray = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels: list[int] = data.train.labels.tolist()
        self.transform: Any = None  # lightly sets it

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        array = self.arrays[index]
        image = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
        return image if self.transform is None else self.transform(image), self.labels[index]


def lightly_transform(method: str, chosen: Recipe) -> Any:
    """lightly's own transform of the method with the recipe's values, so that both sides do the same work."""
    from lightly.transforms.byol_transform import BYOLTransform, BYOLView1Transform, BYOLView2Transform
    from lightly.transforms.simclr_transform import SimCLRTransform
    from lightly.transforms.simsiam_transform import SimSiamTransform

    views, encoder = chosen.views, chosen.encoder
    assert isinstance(views, Crops)
    values: dict[str, Any] = {
        "input_size": views.size, "cj_prob": views.jitter, "cj_strength": 1.0, "cj_bright": views.brightness,
        "cj_contrast": views.contrast, "cj_sat": views.saturation, "cj_hue": views.hue, "min_scale": views.scale[0],
        "random_gray_scale": views.grey, "gaussian_blur": views.blur, "hf_prob": views.flip,
        "normalize": {"mean": list(encoder.mean), "std": list(encoder.std)},
    }  # fmt: skip
    if method == "byol":
        return BYOLTransform(BYOLView1Transform(**values), BYOLView2Transform(**values, solarization_prob=0.0))
    return (SimSiamTransform if method == "simsiam" else SimCLRTransform)(**values)


class LightlyFeed:
    """Batches from lightly's data set and torch's loader, without end. Its workers start with the first batch."""

    def __init__(self, method: str, chosen: Recipe, data: Data, workers: int, device: torch.device) -> None:
        from lightly.data import LightlyDataset

        images = LightlyDataset.from_torch_dataset(InMemory(data), transform=lightly_transform(method, chosen))
        endless = RandomSampler(images, replacement=True, num_samples=10**8)
        self.loader: DataLoader[Any] = DataLoader(
            images,
            chosen.train.batch_size,
            sampler=endless,
            num_workers=workers,
            drop_last=True,
            pin_memory=device.type == "cuda",
        )
        self.workers, self.device = workers, device
        self.batches = iter(self.loader)
        self.views()

    def views(self) -> Views:
        first, second = next(self.batches)[0]
        return first.to(self.device, non_blocking=True), second.to(self.device, non_blocking=True)

    def drain(self) -> None:
        """Throw away what the workers have made ready while others had their turn."""
        for _ in range(2 * self.workers):
            next(self.batches)

    def close(self) -> None:
        self.batches = iter(())  # the last reference to the workers goes


def lightly_head(spec: MLP, width: int) -> nn.Module:
    """lightly's head class with the widths and norms of ours."""
    from lightly.models.modules.heads import ProjectionHead

    assert spec.out is not None
    blocks: list[tuple[Any, ...]] = []
    for wanted in spec.hidden:
        hidden = wanted or width
        blocks.append((width, hidden, nn.BatchNorm1d(hidden) if spec.norm == "batch" else None, nn.ReLU()))
        width = hidden
    last = None if spec.last_norm == "none" else nn.BatchNorm1d(spec.out, affine=spec.last_norm == "batch")
    return ProjectionHead([*blocks, (width, spec.out, last, None)])


class LightlyModel(nn.Module):
    """Backbone and heads, with momentum copies where the method has them, and lightly's loss."""

    def __init__(self, method: str, chosen: Recipe) -> None:
        from lightly.loss import NegativeCosineSimilarity, NTXentLoss

        super().__init__()
        self.method = method
        self.backbone = chosen.encoder.build()
        self.projection = lightly_head(chosen.heads.projector, self.backbone.width)
        if method == "simclr":
            self.criterion = NTXentLoss(temperature=chosen.loss.temperature)  # type: ignore[union-attr]
            return
        out = chosen.heads.projector.out
        assert out is not None
        assert chosen.heads.predictor is not None
        self.prediction = lightly_head(replace(chosen.heads.predictor, out=out), out)
        self.criterion = NegativeCosineSimilarity()
        if method == "byol":
            self.backbone_momentum = copy.deepcopy(self.backbone).requires_grad_(False)
            self.projection_momentum = copy.deepcopy(self.projection).requires_grad_(False)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        z0, z1 = (self.projection(self.backbone(view)) for view in (first, second))
        if self.method == "simclr":
            return self.criterion(z0, z1)  # type: ignore[no-any-return]
        p0, p1 = self.prediction(z0), self.prediction(z1)
        if self.method == "byol":
            with torch.no_grad():
                z0, z1 = (self.projection_momentum(self.backbone_momentum(view)) for view in (first, second))
        return 0.5 * (self.criterion(p0, z1.detach()) + self.criterion(p1, z0.detach()))  # type: ignore[no-any-return]

    def update(self, momentum: float) -> None:
        from lightly.models.utils import update_momentum

        if self.method == "byol":
            update_momentum(self.backbone, self.backbone_momentum, m=momentum)
            update_momentum(self.projection, self.projection_momentum, m=momentum)


def lightly_step(
    method: str, chosen: Recipe, device: torch.device, form: tuple[str, bool], views: Callable[[], Views]
) -> Callable[[], Tensor]:
    """A plain torch loop's step, as lightly's examples write it."""
    precision, channels_last = form
    torch.manual_seed(0)
    model = LightlyModel(method, chosen).to(device)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(memory_format=layout)
    trained = [p for p in model.parameters() if p.requires_grad]
    spec = chosen.optimizer
    optimizer = torch.optim.SGD(trained, lr=0.01, momentum=spec.momentum, weight_decay=spec.weight_decay)

    def step() -> Tensor:
        first, second = (view.to(memory_format=layout) for view in views())
        model.update(0.996)
        with torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else nullcontext():
            loss = model(first, second)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def lightly_contenders(
    method: str, chosen: Recipe, feed: LightlyFeed, device: torch.device, forms: tuple[tuple[str, bool], ...] = FORMS
) -> list[Contender]:
    """lightly in each form, fed by its workers, and once with two views that lie ready: what it could reach at most."""
    batch = chosen.train.batch_size

    def after_drain(step: Callable[[], Any]) -> Callable[[], None]:
        def before() -> None:
            feed.drain()
            for _ in range(feed.workers):
                step()

        return before

    found = []
    for form in forms:
        name = f"lightly {method}, {form[0]}{', channels_last' if form[1] else ''}, {feed.workers} workers"
        found.append(made(name, batch, device, partial(lightly_step, method, chosen, device, form, feed.views)))
        found[-1].before, found[-1].multiple = after_drain(found[-1].step), max(1, feed.workers)
    lying = feed.views()
    bound = forms[-1]
    name = f"lightly {method}, {bound[0]}, no augmentation, views on the {device.type} (bound)"
    found.append(made(name, batch, device, lambda: lightly_step(method, chosen, device, bound, lambda: lying)))
    found[-1].facts["bound"] = True
    return found


def made(name: str, batch: int, device: torch.device, build: Callable[[], Callable[[], Any]]) -> Contender:
    """A contender with the memory that its first steps took."""
    peak = Peak(device)
    step = build()
    for _ in range(2):
        step()
    return Contender(name, batch, step, facts={"peak_gb": peak.gb()})


# --- the released code ------------------------------------------------------------------------------------------------


class ReleasedStep:
    """SupSiam's step as the released code is described: fp32, eager, one forward a view, a loop over the labels.

    Each look-up waits for the GPU to say which slots hold the label, for both views: about two waits an image. The
    class mean over all positives is the target, or the other view's own where there are none; z1 is stored.
    """

    def __init__(self, chosen: Recipe, device: torch.device, classes: int) -> None:
        torch.manual_seed(0)
        encoder, out = chosen.encoder.build(), chosen.heads.projector.out
        assert out is not None
        assert chosen.heads.predictor is not None
        self.online = nn.Sequential(encoder, chosen.heads.projector.build(encoder.width)).to(device)
        self.predictor = replace(chosen.heads.predictor, out=out).build(out).to(device)
        batch, side = chosen.train.batch_size, chosen.encoder.size
        self.size, self.at, self.alpha = chosen.pool.size, 0, 0.5
        self.pool = F.normalize(torch.randn(self.size, out, device=device), dim=1)
        self.pool_labels = torch.randint(0, classes, (self.size,), device=device)
        self.views = torch.randn(2, batch, chosen.encoder.channels, side, side, device=device)
        self.labels = torch.randint(0, classes, (batch,), device=device)
        parameters = [*self.online.parameters(), *self.predictor.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)
        self.seen: list[float] = []

    def class_means(self, own: Tensor) -> Tensor:
        rows = []
        for number, label in enumerate(self.labels):
            slots = torch.nonzero(self.pool_labels == label).flatten()  # waits for the device
            rows.append(self.pool[slots].mean(0) if len(slots) else own[number])
        return torch.stack(rows)

    def __call__(self) -> None:
        z1, z2 = (self.online(view) for view in self.views)
        p1, p2 = (F.normalize(self.predictor(z), dim=1) for z in (z1, z2))
        z1, z2 = F.normalize(z1.detach(), dim=1), F.normalize(z2.detach(), dim=1)
        ssl = -((p1 * z2).sum(1).mean() + (p2 * z1).sum(1).mean()) / 2
        sup = -((p1 * self.class_means(z2)).sum(1).mean() + (p2 * self.class_means(z1)).sum(1).mean()) / 2
        loss = self.alpha * ssl + (1 - self.alpha) * sup
        self.seen = [loss.item(), ssl.item(), sup.item()]  # for the log, every step
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        end = min(self.at + len(z1), self.size)
        self.pool[self.at : end], self.pool_labels[self.at : end] = z1[: end - self.at], self.labels[: end - self.at]
        self.at = end % self.size


def released(chosen: Recipe, device: torch.device, classes: int) -> Contender:
    name = "released code's step, from its description: fp32, eager, views on the GPU"
    return made(name, chosen.train.batch_size, device, lambda: ReleasedStep(chosen, device, classes))
