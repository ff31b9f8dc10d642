"""What a run learns and saves: branches, pool, optimizer, and the generator of the views' random numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.core.encoders import Encoder
from supancl.core.methods import assemble
from supancl.data.order import derive_seed
from supancl.data.views.specs import Crops
from supancl.distributed import Ranks
from supancl.distributed.norms import synchronize_norms
from supancl.recipes import Recipe


class Model:
    """Branches, pool, optimizer and generator of one run, on its device."""

    def __init__(self, recipe: Recipe, classes: int, device: torch.device, ranks: Ranks, pairs: int = 0) -> None:
        """`pairs` is the number of labels per image, 0 for one of weight 1."""
        self.device, self.pairs = device, pairs
        torch.manual_seed(recipe.train.seed)
        self.branches, self.pool = _assemble(recipe, classes, ranks, pairs)
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

    def restart(self, recipe: Recipe, classes: int, ranks: Ranks) -> None:
        """Begin another run in the same tensors, because a captured step reads them."""
        torch.manual_seed(recipe.train.seed)
        branches, pool = _assemble(recipe, classes, ranks, self.pairs)
        self.branches.load_state_dict(branches.state_dict())
        self.branches.train()
        if self.pool is not None and pool is not None:
            self.pool.load_state_dict(pool.state_dict())
        for parameter_state in self.optimizer.state.values():
            for value in parameter_state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        self.generator.manual_seed(derive_seed(recipe.train.seed, 2))

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


def _assemble(recipe: Recipe, classes: int, ranks: Ranks, pairs: int) -> Any:
    return assemble(
        recipe.encoder, recipe.heads, recipe.branches, recipe.pool, recipe.loss, max(classes, 1), ranks, pairs
    )


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


# --- layers -----------------------------------------------------------------------------------------------------------


class FoldedConv2d(nn.Conv2d):
    """A strided convolution of few channels, computed as one of stride 1 with stride^2 times as many channels.

    Each stride x stride square of pixels becomes one pixel; the kernel is padded with zeros to full squares and folded
    in the same way. Tensor cores process eight channels at a time, so a stem with three wastes most of them.
    """

    def forward(self, images: Tensor) -> Tensor:
        size, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        front = -padding % stride
        padded_size = math.ceil((size + front) / stride) * stride
        pad = [0, 0, 0, 0]
        for side, pixels in ((0, images.shape[-1]), (2, images.shape[-2])):
            outputs = (pixels + 2 * padding - size) // stride + 1
            pad[side] = padding + front
            pad[side + 1] = (outputs - 1) * stride + padded_size - pixels - pad[side]
        back = padded_size - size - front
        padded = F.pad(images, pad), F.pad(self.weight, (front, back, front, back))
        folded, weight = (F.pixel_unshuffle(tensor, stride) for tensor in padded)
        extra_channels = -folded.shape[1] % 8
        if extra_channels:
            folded, weight = (F.pad(tensor, (0, 0, 0, 0, 0, extra_channels)) for tensor in (folded, weight))
        return F.conv2d(folded.contiguous(memory_format=torch.channels_last), weight, self.bias)


def optimize_for_cuda(module: nn.Module) -> None:
    """Change the layers that have a faster form on GPUs, in place."""
    for layer in module.modules():
        if _is_foldable(layer):
            layer.__class__ = FoldedConv2d


def _is_foldable(layer: nn.Module) -> bool:
    """Whether it is a square, strided convolution of at most four channels with zero padding."""
    return (
        type(layer) is nn.Conv2d and layer.in_channels <= 4 and layer.groups == 1 and layer.padding_mode == "zeros"
        and layer.dilation == (1, 1) and not isinstance(layer.padding, str) and layer.stride[0] > 1
        and all(len(set(sides)) == 1 for sides in (layer.kernel_size, layer.stride, layer.padding))
    )  # fmt: skip
