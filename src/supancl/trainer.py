"""What changes while training, and the step that changes it, written as the paper writes it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from supancl.data.loader import epoch_order, seeded
from supancl.data.sources import Data, resident
from supancl.errors import BadInput
from supancl.methods import assemble
from supancl.monitor import Monitor
from supancl.recipes import Recipe
from supancl.schedules import ema_momentum, learning_rate


class Trainer:
    """Everything that changes while training, and the step that changes it."""

    def __init__(self, recipe: Recipe, data: Data, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.train_images = resident(data.train, device)
        self.labels = data.train.labels.to(device)
        torch.manual_seed(recipe.train.seed)
        self.branches, self.pool = assemble(
            recipe.encoder, recipe.heads, recipe.branches, recipe.pool, recipe.loss, max(len(data.classes), 1)
        )
        self.branches.to(device)
        if self.pool is not None:
            self.pool.to(device)
        if device.type == "cuda":
            self.branches.to(memory_format=torch.channels_last)
        self.forward = torch.compile(self.branches) if recipe.train.compile else self.branches
        self.optimizer = build_optimizer(recipe, self.branches)
        self.steps_per_epoch = len(data.train) // recipe.train.batch_size
        self.steps = self.steps_per_epoch * recipe.train.epochs
        self.rates = [
            learning_rate(recipe.schedule, recipe.learning_rate, recipe.train.epochs, self.steps_per_epoch, predictor)
            for predictor in (False, True)
        ]
        self.momentum_at = ema_momentum(recipe.branches.momentum, recipe.branches.momentum_end, self.steps)
        self.generator = torch.Generator(device).manual_seed(seeded(recipe.train.seed, 2))
        self.monitor = Monitor(data, recipe.loss.supervised)
        self.step = 0
        self.interval = torch.zeros(4, dtype=torch.float64, device=device)  # loss, ssl, sup, steps since the last row
        self.bad_steps: list[int] = []  # steps that gave no finite loss and are passed over

    def positions(self) -> Tensor:
        """Which training images this step takes."""
        epoch, at = divmod(self.step, self.steps_per_epoch)
        order = epoch_order(len(self.train_images), self.recipe.train.seed, epoch)
        return order[at * self.recipe.train.batch_size : (at + 1) * self.recipe.train.batch_size]

    def train_step(self, positions: Tensor) -> Tensor | None:
        """One step of the algorithm: gives z2; None, with nothing changed, if loss or gradient is not finite."""
        recipe, released = self.recipe, self.recipe.compat == "released-code"
        momentum, labels = self.momentum_at(self.step), self.labels[positions.to(self.device)]
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=False):
            group["lr"] = rate(self.step)
        # what a forward (batch-norm statistics) or the released code's early EMA has changed when a step is skipped
        moving = [*self.branches.buffers(), *(self.branches.target_parameters() if released else ())]
        before = [value.clone() for value in moving] if recipe.train.on_nan == "skip" else []
        self.optimizer.zero_grad(set_to_none=True)
        if released:
            self.branches.update_target(momentum)  # the released code moves the target before its forward
        parts, seen = [], []
        for micro in torch.arange(len(positions)).chunk(recipe.train.accumulate):
            batch = self.train_images.batch(positions[micro]).to(self.device)
            views = recipe.views(batch, recipe.encoder.mean, recipe.encoder.std, self.generator)
            with self.autocast():
                anchors, targets = self.forward(views)
            terms = recipe.loss(anchors, targets, labels[micro.to(self.device)], self.pool)
            (terms.total / recipe.train.accumulate).backward()
            parts.append(torch.stack([terms.total.detach(), terms.ssl, terms.sup]))
            seen.append(targets.detach())
        mean, targets = torch.stack(parts).double().mean(0), torch.cat(seen, dim=1)
        if not self.finite(mean):
            with torch.no_grad():
                for value, old in zip(moving, before, strict=False):
                    value.copy_(old)
            return None
        self.optimizer.step()
        if not released:
            self.branches.update_target(momentum)
        if self.pool is not None:
            self.pool.push(targets[0 if released else 1], labels)  # z2, after the loss: never its own positive
        self.interval += torch.cat([mean, mean.new_ones(1)])
        return targets[1]

    def finite(self, mean: Tensor) -> bool:
        gradients = [p.grad for p in self.branches.parameters() if p.grad is not None]
        return bool(torch.isfinite(mean).all() & torch.isfinite(torch.nn.utils.get_total_norm(gradients)))

    def sound(self) -> bool:
        """Whether every weight is a number: asked before anything is saved over what was good."""
        return all(bool(torch.isfinite(p).all()) for p in self.branches.parameters())

    def autocast(self) -> Any:
        if self.recipe.train.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def mean_since(self) -> tuple[float, float, float]:
        """Loss, ssl and sup averaged over the steps since this was last asked."""
        loss, ssl, sup, steps = self.interval.tolist()
        self.interval.zero_()
        return (loss / steps, ssl / steps, sup / steps) if steps else (math.nan, math.nan, math.nan)

    def state(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "step": self.step,
            "branches": self.branches.state_dict(),
            "pool": None if self.pool is None else self.pool.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": {
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
                "views": self.generator.get_state(),
            },
            "interval": self.interval,
            "monitor": self.monitor.state(),
            "bad_steps": self.bad_steps,
        }

    def load(self, state: dict[str, Any]) -> None:
        if state.get("recipe") != self.recipe.name:
            raise BadInput(f"the checkpoint is of recipe {state.get('recipe')!r}, this run is {self.recipe.name!r}; "
                           "choose another --out")
        try:
            self.branches.load_state_dict(state["branches"])
            if self.pool is not None:
                self.pool.load_state_dict(state["pool"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"]["torch"])
            self.generator.set_state(state["rng"]["views"])
            if self.device.type == "cuda" and state["rng"]["cuda"] is not None:
                torch.cuda.set_rng_state(state["rng"]["cuda"], self.device)
            self.step, self.bad_steps = int(state["step"]), list(state["bad_steps"])
            self.interval.copy_(state["interval"])
            self.monitor.load(state["monitor"])
        except (KeyError, RuntimeError, ValueError, AttributeError, TypeError) as error:
            raise BadInput(f"the checkpoint does not fit this run ({str(error).splitlines()[0]}); "
                           "was it made with other settings?") from None


def build_optimizer(recipe: Recipe, branches: torch.nn.Module) -> torch.optim.Optimizer:
    """Two groups: encoder and projector, whose rate decays, and the predictor, whose rate may not."""
    named = [(name, p) for name, p in branches.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in named if name.startswith("predictor.") == is_predictor]}
        for is_predictor in (False, True)
    ]
    spec = recipe.optimizer
    if spec.name == "adamw":
        betas = (spec.momentum, 0.999)  # "a momentum of 0.9": App. G
        return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=betas, weight_decay=spec.weight_decay)
    return torch.optim.SGD(groups, recipe.learning_rate, momentum=spec.momentum, weight_decay=spec.weight_decay)
