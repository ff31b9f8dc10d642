"""A run in memory: what it learns and saves, the step in its fastest form, and prefetched batches."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from supancl.core.encoders import Encoder
from supancl.core.methods import assemble
from supancl.data.order import derive_seed
from supancl.data.splits import Data
from supancl.data.store.memory import Feed
from supancl.data.views.specs import Crops
from supancl.distributed import SINGLE_PROCESS, Ranks
from supancl.distributed.norms import synchronize_norms
from supancl.errors import BadInput
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.recipes.plugins import has_plugin_section
from supancl.recipes.recipe import fixed_settings
from supancl.training.monitor import Monitor
from supancl.training.speed import CapturedStep, compile_step, optimize_for_cuda
from supancl.training.step import Step, StepInputs


class Trainer:
    """`advance()` takes the next step; `state()` and `load()` write and read the content of a checkpoint."""

    def __init__(self, recipe: Recipe, data: Data, device: torch.device, ranks: Ranks = SINGLE_PROCESS) -> None:
        self.recipe, self.device, self.ranks = recipe, device, ranks
        self.inputs = StepInputs(recipe, data, device, ranks)
        labels = data.train.all_labels
        pairs = 0 if labels.has_one_each else labels.classes.shape[1]
        self.model = Model(recipe, len(data.classes), device, ranks, pairs)
        self.feed = Feed(self.inputs.images, self.inputs.local_positions, device, self.inputs.schedule.steps)
        may_replay = can_replay(recipe, device, ranks, self.feed)
        step = Step(recipe, self.model, self.inputs, ranks, cache_casts=not may_replay)
        if recipe.train.compile:
            compile_step(step, ranks)
        self.captured = CapturedStep(step, device, may_replay)
        self.monitor = Monitor(data, recipe.loss.supervised)
        self.step = 0

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        return self.inputs.schedule.steps

    @property
    def steps_per_epoch(self) -> int:
        return self.inputs.schedule.steps_per_epoch

    def advance(self) -> Tensor:
        """Take the next step and return its targets z2."""
        self.inputs.move_to(self.step)
        targets = self.captured(self.next_batch())
        self.step += 1
        self.inputs.mark_step_done()
        return targets

    def next_batch(self) -> Any:
        """The pixels of the next step; None if they are on the device."""
        return None if self.feed.is_resident else self.feed.batch(self.step)

    def capture(self) -> None:
        """Record the next step without taking it. Raises the libraries' error if that fails."""
        batch = self.next_batch()
        self.feed.close()  # no other thread may use the GPU while a step is recorded; it reopens automatically
        self.captured.capture(self.model.generator, batch)

    # --- what a checkpoint holds --------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.name,
            "settings": fixed_settings(self.recipe),
            "step": self.step,
            **self.model.state(),
            "interval": self.inputs.sums,
            "monitor": self.monitor.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        try:
            if state["recipe"] != self.recipe.name or state["step"] not in range(self.steps + 1):
                raise ValueError(f"it is of step {state['step']} of {state['recipe']}")
            self.model.load(state)
            self.step = state["step"]
            self.inputs.sums.copy_(state["interval"])
            self.monitor.load(state["monitor"])
        except (LookupError, RuntimeError, ValueError, AttributeError, TypeError, OverflowError) as error:
            raise BadInput(
                f"the checkpoint does not fit this run ({reason(error)}); was it made with other settings"
                f"{' or another plugin' if has_plugin_section(self.recipe) else ''}?"
            ) from None
        self.inputs.invalidate()


def can_replay(recipe: Recipe, device: torch.device, ranks: Ranks, feed: Feed) -> bool:
    """Whether a step can be recorded: on one GPU, with batches of one shape."""
    requested = device.type == "cuda" and bool(recipe.train.replay) and ranks.size == 1
    return requested and feed.split.store.has_one_shape(device)


# --- what is learned and saved ----------------------------------------------------------------------------------------


class Model:
    """Branches, pool, optimizer and generator of one run, on its device."""

    def __init__(self, recipe: Recipe, classes: int, device: torch.device, ranks: Ranks, pairs: int = 0) -> None:
        """`pairs` is the number of labels per image, 0 for one of weight 1."""
        self.device = device
        torch.manual_seed(recipe.train.seed)
        specs = (recipe.encoder, recipe.heads, recipe.branches, recipe.pool, recipe.loss)
        assembled: Any = assemble(*specs, max(classes, 1), ranks, pairs)
        self.branches, self.pool = assembled
        for encoder in (self.branches.encoder, self.branches.target_encoder):
            if isinstance(encoder, Encoder):
                encoder.freeze_norm = recipe.optimizer.freeze_norm
                encoder.train()
        self.branches.to(device)
        if self.pool is not None:
            self.pool.to(device)
        if device.type == "cuda":
            self.branches.to(memory_format=torch.channels_last)
            optimize_for_cuda(self.branches)
            if not isinstance(recipe.views, Crops) or recipe.views.local is None:
                self.branches.join_views()
        if ranks.size > 1 and recipe.train.sync_norm:
            synchronize_norms(self.branches, device)
        self.ddp_branches = ranks.wrap_in_ddp(self.branches, device, recipe.train.gradients)
        self.optimizer = build_optimizer(recipe, self.branches, device)
        self.generator = torch.Generator(device).manual_seed(derive_seed(recipe.train.seed, 2))

    def copy_encoder(self, recipe: Recipe) -> Encoder:
        """A copy of the encoder for users: with torch's layers, in eval mode, sharing no tensors."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            encoder = recipe.encoder.build()
        encoder.load_state_dict(self.branches.encoder.state_dict())
        return encoder.to(self.device).eval()

    def weights_are_finite(self) -> bool:
        """Checked before a checkpoint is written."""
        weights = [p.detach() for p in self.branches.parameters()]
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(weights, norm_type=math.inf)))

    def push_targets(self, targets: Tensor, labels: Tensor) -> None:
        if self.pool is not None:
            self.pool.push(targets, labels)

    def state(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        return {
            "branches": self.branches.state_dict(),
            "pool": None if self.pool is None else self.pool.state_dict(),
            "optimizer": optimizer,
            "rng": {
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
                "views": self.generator.get_state(),
            },
        }

    def load(self, state: dict[str, Any]) -> None:
        self.branches.load_state_dict(state["branches"])
        if self.pool is not None:
            self.pool.load_state_dict(state["pool"])
        self._load_optimizer(state["optimizer"])
        torch.set_rng_state(state["rng"]["torch"])
        self.generator.set_state(state["rng"]["views"])
        if self.device.type == "cuda" and state["rng"]["cuda"] is not None:
            torch.cuda.set_rng_state(state["rng"]["cuda"], self.device)

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        """Load the state but keep how this optimizer computes: fused, with rates on the device."""
        local_settings = [
            {key: group[key] for key in ("lr", "fused", "capturable") if key in group}
            for group in self.optimizer.param_groups
        ]
        groups = [{**saved, **local} for saved, local in zip(state["param_groups"], local_settings, strict=True)]
        self.optimizer.load_state_dict({**state, "param_groups": groups})
        for group, local in zip(self.optimizer.param_groups, local_settings, strict=True):
            group["lr"] = local["lr"]


def build_optimizer(recipe: Recipe, branches: torch.nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Two groups: encoder and projector, whose rate decays, and the predictor, whose rate may be constant.

    With optimizer.encoder_lr_scale, the encoder is a third one.
    Rates are tensors on the device, which `StepInputs.set_rates` fills and the fused kernels read.
    """
    spec = recipe.optimizer
    members: list[list[Tensor]] = [[], [], *[[]] * (spec.encoder_lr_scale != 1)]
    for name, parameter in branches.named_parameters():
        if parameter.requires_grad:
            is_scaled = name.startswith("encoder.") and len(members) == 3
            members[2 if is_scaled else int(name.startswith("predictor."))].append(parameter)
    groups = [{"params": params, "lr": torch.zeros((), device=device)} for params in members]
    if spec.name == "adamw":
        betas = (spec.momentum, 0.999)  # "a momentum of 0.9": App. G
        return torch.optim.AdamW(
            groups, betas=betas, weight_decay=spec.weight_decay, fused=True, capturable=device.type == "cuda"
        )
    return torch.optim.SGD(groups, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True)
