"""What changes while training, and the step that changes it, written as the paper writes it.

Whatever differs from one step to the next (its number, the epoch's order, learning rates, momentum) lies on the device,
so that the step waits for nothing and can be captured and replayed (capture.py).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from supancl.core.losses import Terms, Whole, share, takes_alpha
from supancl.core.methods import assemble
from supancl.core.schedules import ema_momentum, learning_rate
from supancl.data.order import seeded
from supancl.data.splits import Data, Feed
from supancl.data.store.memory import Batch, Progress
from supancl.data.views.specs import Crops, draw_and_render, in_part
from supancl.distributed import ALONE, Part, Ranks, synchronize
from supancl.errors import BadInput
from supancl.files import reason
from supancl.recipes import Recipe
from supancl.training.cuda.capture import Replay, aside, compiled_or_plain
from supancl.training.cuda.layers import arrange
from supancl.training.monitor import Monitor, relative_std

WARM_UP = 3  # steps before one is captured: libraries choose their kernels and allocate


class Look(NamedTuple):
    """Losses averaged over the steps since the last look, the targets' spread, and a step without a finite loss."""

    loss: float
    ssl: float
    sup: float
    std: float
    bad_step: int | None


class Trainer:
    """Everything that changes while training, and the step that changes it."""

    def __init__(
        self, recipe: Recipe, data: Data, device: torch.device, progress: Progress | None = None, ranks: Ranks = ALONE
    ) -> None:
        self.recipe, self.device, self.ranks = recipe, device, ranks
        self.train_images = data.train.place_on(device, progress)
        streamed = data.train.is_streamed  # then batches bring their labels
        self.labels = torch.empty(0, dtype=torch.long, device=device) if streamed else data.train.labels.to(device)
        torch.manual_seed(recipe.train.seed)
        self.branches, self.pool = assemble(
            recipe.encoder,
            recipe.heads,
            recipe.branches,
            recipe.pool,
            recipe.loss,
            max(len(data.classes), 1),
            ranks,
        )
        self.branches.to(device)
        if self.pool is not None:
            self.pool.to(device)
        if device.type == "cuda":
            self.branches.to(memory_format=torch.channels_last)
        self.arrange()
        if ranks.size > 1 and recipe.train.sync_norm:
            synchronize(self.branches, device)
        self.spread = ranks.wrapped(self.branches, device, recipe.train.gradients)
        self.compile(bool(recipe.train.compile))
        self.optimizer = build_optimizer(recipe, self.branches, device)
        self.generator = torch.Generator(device).manual_seed(seeded(recipe.train.seed, 2))
        self.micros = ranks.micros(recipe.train.batch_size, recipe.train.accumulate, device)
        self.plan(data)
        self._to_device()
        self.replay: Replay | None = None
        self.warmed = 0

    def compile(self, yes: bool) -> None:
        """Make one graph of the step, or take it as it is written.

        Ranks exchange within a step: several compile views, pool and, where norms are each rank's own, branches.
        One that cannot does that part as written: it may not repeat a step of which the others have seen a beginning.
        """
        several, synced = self.ranks.size > 1, self.recipe.train.sync_norm
        self.compiled, on_gpu = yes, yes and self.device.type == "cuda"
        self.unsaid: list[str] = []  # of the compiler, where the step went on all the same
        self.forward = self.tried("the branches", self.spread) if yes and several and not synced else self.spread
        self.objective = torch.compile(self.compared) if yes and not several else self.compared
        # on a GPU these are dozens of kernels, each soon over
        self.render = self.tried("the views", draw_and_render) if on_gpu else draw_and_render
        fills = on_gpu and self.pool is not None
        self.push = self.tried("filling the pool", self.pushed) if fills else self.pushed

    def tried(self, what: str, function: Any) -> Any:
        """It compiled, or where that fails as written, of which `unsaid` hears."""
        return compiled_or_plain(
            function, lambda error: self.unsaid.append(f"{what} could not be compiled ({reason(error)})")
        )

    def arrange(self) -> None:
        """The layers as they are trained fastest on this device; what they compute stays the same."""
        if self.device.type != "cuda":
            return
        arrange(self.branches)
        if not isinstance(self.recipe.views, Crops) or self.recipe.views.local is None:
            self.branches.join(2)

    def plan(self, data: Data) -> None:
        """What a run goes through: which images when, which rates, and who watches."""
        recipe = self.recipe
        self.order = data.train.order(recipe.train.seed, recipe.train.batch_size, recipe.data.balanced)
        self.steps_per_epoch = self.order.steps_per_epoch
        self.steps = self.steps_per_epoch * recipe.train.epochs
        self.feed = Feed(self.train_images, self.own_positions, self.device, self.steps)
        self.rates = [
            learning_rate(recipe.schedule, recipe.learning_rate, recipe.train.epochs, self.steps_per_epoch, predictor)
            for predictor in (False, True)
        ]
        self.momentum_at = ema_momentum(recipe.branches.momentum, recipe.branches.momentum_end, self.steps)
        self.monitor = Monitor(data, recipe.loss.supervised)
        self.step = 0
        self.bad_steps: list[int] = []  # steps that gave no finite loss and are passed over

    def _to_device(self) -> None:
        """What the step reads on the device: its number, the order of the epoch, and all that follows a schedule."""
        self.schedule = torch.zeros(3, self.steps_per_epoch, dtype=torch.float64, device=self.device)  # of this epoch
        self.interval = torch.zeros(4, dtype=torch.float64, device=self.device)  # loss, ssl, sup, steps since a row
        loss, of_device = self.recipe.loss, self.pool is not None and self.device.type == "cuda"
        # where a captured step reads it; on a CPU it is the loss's own number
        self.alpha = torch.tensor(loss.alpha, device=self.device) if of_device and takes_alpha(loss) else None
        self.momentum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.at = torch.zeros(1, dtype=torch.long, device=self.device)
        self.at_on_host, self.epoch = 0, -1
        self.epoch_order = torch.zeros(len(self.labels), dtype=torch.long, device=self.device)
        self.rows = torch.arange(self.recipe.train.batch_size, device=self.device)
        self.first_bad = torch.full((1,), -1, device=self.device)

    def scheduled(self, epoch: int) -> Tensor:
        """(3, its steps): both learning rates and the momentum; in double: 1 - 0.9999 would lose four digits."""
        steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
        rows = [[rate(step) for step in steps] for rate in (*self.rates, self.momentum_at)]
        return torch.tensor(rows, dtype=torch.float64)

    # --- the step -----------------------------------------------------------------------------------------------------

    def train_step(self, batch: Batch | None = None) -> Tensor | None:
        """One step of the algorithm: gives z2; None, with nothing changed, where it was seen not to be finite.

        `batch` brings the pixels where they are not resident on the device.
        """
        recipe, released = self.recipe, self.recipe.compat == "released-code"
        if batch is not None and batch.labels is not None:
            positions, labels = self.rows, self.all_labels(batch.labels)
        else:
            positions = self.epoch_order.index_select(0, self.at % self.steps_per_epoch * len(self.rows) + self.rows)
            labels = self.labels.index_select(0, positions)
        self.set_rates()
        before = self.remembered(released)
        self.optimizer.zero_grad(set_to_none=True)
        if released:
            self.branches.update_target(self.momentum)  # the released code moves the target before its forward
        parts: list[Tensor] = []
        seen: list[Tensor] = []
        for micro, part, fed in self.micros:
            images = self.train_images.batch(positions[part.of(micro)]) if batch is None else batch.take(fed)
            mean, std, augment = recipe.encoder.mean, recipe.encoder.std, in_part(recipe.views, part)
            views = augment(images, mean, std, self.generator, renderer=self.render, dtype=self.view_dtype)
            local = augment.local_views(images, mean, std, self.generator, self.render, self.view_dtype)
            with self.ranks.apart(self.spread, yes=len(seen) + 1 < len(self.micros)):
                terms, targets = self.objective(views, local, labels[micro], part)
                parts.append(torch.stack(terms) * share(recipe.loss, labels[micro], labels))
                (parts[-1][0] * self.ranks.size).backward()  # averaged over the ranks
            seen.append(targets)
        losses, targets = self.ranks.summed(torch.stack(parts).detach().double().sum(0)), torch.cat(seen, dim=1)
        if not self.accepted(losses, before):
            return None
        self.optimizer.step()
        if not released:
            self.branches.update_target(self.momentum)
        self.push(targets[0 if released else -1], labels)  # z2, after the loss: never its own positive
        self.interval += torch.cat([losses, losses.new_ones(1)])
        self.at += 1
        return targets[-1]

    def compared(self, views: Tensor, local: Tensor | None, labels: Tensor, part: Part) -> tuple[Terms, Tensor]:
        """Anchors, targets and their loss, one graph to the compiler; gives the targets (z2 at least) of all rows.

        Of several ranks each has the loss of its rows as their share in the batch's.
        """
        with self.autocast():
            anchors, targets = self.forward(views, local)
        loss, total = self.recipe.loss, part.total
        if part.whole:
            if self.alpha is not None and takes_alpha(loss):
                return loss(anchors, targets, labels, self.pool, self.alpha), targets.detach()
            return loss(anchors, targets, labels, self.pool), targets.detach()
        sees, own = loss.sees_batch(self.pool), part.of(labels)
        of_all = self.ranks.gather(targets, total, 1) if sees else targets
        terms = loss(anchors, targets, own, self.pool, whole=Whole(of_all, labels, part))
        weight = share(loss, own, labels)
        if not sees:
            kept = targets.detach() if self.recipe.compat == "released-code" else targets.detach()[1:]
            of_all = self.ranks.gather(kept, total, 1)
        return Terms(*(term * weight for term in terms)), of_all.detach()

    def pushed(self, targets: Tensor, labels: Tensor) -> None:
        if self.pool is not None:
            self.pool.push(targets, labels)

    def own_positions(self, step: int) -> Tensor:
        """Which images of a step this rank takes."""
        positions: Tensor = self.order.positions(step)
        if self.ranks.size == 1:
            return positions
        return torch.cat([positions[part.of(micro).cpu()] for micro, part, _ in self.micros])

    def all_labels(self, labels: Tensor) -> Tensor:
        """The labels of the whole batch, from those that came with this rank's images."""
        if self.ranks.size == 1:
            return labels
        return torch.cat([self.ranks.gather(labels[fed], part.total) for _, part, fed in self.micros])

    def advance(self) -> Tensor | None:
        """The next step, replayed once it has been captured."""
        epoch = self.step // self.steps_per_epoch
        if self.at_on_host != self.step:
            self.at.fill_(self.step)
        if epoch != self.epoch:
            self.epoch_order.copy_(self.order.epoch(epoch), non_blocking=True)
            self.schedule.copy_(self.scheduled(epoch), non_blocking=True)
            self.epoch = epoch
        batch = None if self.feed.resident else self.feed.batch(self.step)
        if self.replay is not None:
            targets: Tensor | None = self.replay(batch)
        elif self.may_replay and self.warmed < WARM_UP:  # beyond, the step is captured, or could not be
            with aside(self.device):
                targets = self.train_step(batch)
            self.warmed += 1
        else:
            targets = self.train_step(batch)
        if targets is not None:
            self.at_on_host = self.step = self.step + 1
        return targets

    @property
    def may_replay(self) -> bool:
        settings = self.recipe.train
        return (
            self.device.type == "cuda"
            and bool(settings.replay)
            and not self.checks_every_step
            and self.feed.one_shape
            and self.ranks.size == 1
        )

    def capture(self) -> None:
        """Record the step that comes next; it is not taken. Raises what the libraries raise where they cannot."""
        batch = None if self.feed.resident else self.feed.batch(self.step)
        self.feed.close()  # while a step is recorded, no other thread may ask the GPU for anything; it opens by itself
        self.replay = Replay(self.train_step, self.generator, batch)

    def set_rates(self) -> None:
        now = self.schedule.index_select(1, self.at % self.steps_per_epoch)[:, 0]
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"].copy_(now[number])
        self.momentum.copy_(now[2])

    # --- numbers that are not numbers ---------------------------------------------------------------------------------

    @property
    def checks_every_step(self) -> bool:
        """On a GPU a look at every loss would make the host wait for it; there the log's interval is soon enough."""
        return self.device.type == "cpu" or self.recipe.train.on_nan == "skip"

    def remembered(self, released: bool) -> list[tuple[Tensor, Tensor]]:
        """What a forward (batch-norm statistics) or the released code's early EMA changes, for a step to be skipped."""
        if self.recipe.train.on_nan != "skip":
            return []
        moving = [*self.branches.buffers(), *(self.branches.target_parameters() if released else ())]
        return [(value, value.clone()) for value in moving]

    def accepted(self, losses: Tensor, before: list[tuple[Tensor, Tensor]]) -> bool:
        """Whether to go on with the step; where nobody looks at once, the first bad step is noted on the device."""
        gradients = [p.grad for p in self.branches.parameters() if p.grad is not None]
        finite = torch.isfinite(losses).all() & torch.isfinite(torch.nn.utils.get_total_norm(gradients))
        if not self.checks_every_step:
            self.first_bad.copy_(torch.where((self.first_bad < 0) & ~finite, self.at, self.first_bad))
            return True
        if not bool(finite):
            with torch.no_grad():
                for value, old in before:
                    value.copy_(old)
            return False
        return True

    def bad_step(self) -> int | None:
        """The first step since the last checkpoint that gave no finite loss; waits for the device."""
        found = int(self.first_bad)
        return found if found >= 0 else None

    def sound(self) -> bool:
        """Whether every weight is a number: asked before anything is saved over what was good."""
        weights = [p.detach() for p in self.branches.parameters()]
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(weights, norm_type=math.inf)))

    def autocast(self) -> Any:
        if self.recipe.train.precision == "bf16":
            # a captured step must not rely on casts of an earlier one
            return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=not self.may_replay)
        return nullcontext()

    @property
    def view_dtype(self) -> torch.dtype:
        """Views are made as the encoder reads them; on a CPU always in single precision."""
        half = self.device.type == "cuda" and self.recipe.train.precision == "bf16"
        return torch.bfloat16 if half else torch.float32

    def look(self, targets: Tensor) -> Look:
        """What the log wants to know, the spread of these targets included, in one copy from the device."""
        std = relative_std(targets).to(self.interval) if len(targets) else self.interval.new_full((), math.nan)
        told = torch.cat([self.interval, std[None], self.first_bad.to(self.interval)])
        self.interval.zero_()
        loss, ssl, sup, steps, spread, bad = told.tolist()
        steps = steps or math.nan
        return Look(loss / steps, ssl / steps, sup / steps, spread, int(bad) if bad >= 0 else None)

    def mean_since(self) -> tuple[float, float, float]:
        """Loss, ssl and sup averaged over the steps since this was last asked."""
        seen = self.look(torch.empty(0))
        return seen.loss, seen.ssl, seen.sup

    # --- the state of a run -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        for group in optimizer["param_groups"]:
            group["lr"] = float(group["lr"])
        return {
            "recipe": self.recipe.name,
            "step": self.step,
            "branches": self.branches.state_dict(),
            "pool": None if self.pool is None else self.pool.state_dict(),
            "optimizer": optimizer,
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
            raise BadInput(
                f"the checkpoint is of recipe {state.get('recipe')!r}, this run is {self.recipe.name!r}; "
                "choose another --out"
            )
        try:
            self.branches.load_state_dict(state["branches"])
            if self.pool is not None:
                self.pool.load_state_dict(state["pool"])
            self._load_optimizer(state["optimizer"])
            torch.set_rng_state(state["rng"]["torch"])
            self.generator.set_state(state["rng"]["views"])
            if self.device.type == "cuda" and state["rng"]["cuda"] is not None:
                torch.cuda.set_rng_state(state["rng"]["cuda"], self.device)
            self.step, self.bad_steps = int(state["step"]), list(state["bad_steps"])
            self.interval.copy_(state["interval"])
            self.monitor.load(state["monitor"])
        except (KeyError, RuntimeError, ValueError, AttributeError, TypeError) as error:
            raise BadInput(
                f"the checkpoint does not fit this run ({str(error).splitlines()[0]}); was it made with other settings?"
            ) from None
        self.first_bad.fill_(-1)
        self.epoch, self.at_on_host = -1, -1
        self.replay, self.warmed = None, 0  # captured with tensors that have just been replaced

    def _load_optimizer(self, state: dict[str, Any]) -> None:
        """The kept state, with how it is computed (fused, rates on the device) as it is here."""
        own = [
            {key: group[key] for key in ("lr", "fused", "capturable") if key in group}
            for group in self.optimizer.param_groups
        ]
        groups = [{**kept, **here} for kept, here in zip(state["param_groups"], own, strict=True)]
        self.optimizer.load_state_dict({**state, "param_groups": groups})
        for group, here in zip(self.optimizer.param_groups, own, strict=True):
            group["lr"] = here["lr"]


def build_optimizer(recipe: Recipe, branches: torch.nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Two groups: encoder and projector, whose rate decays, and the predictor, whose rate may not.

    Rates are tensors on the device, which `set_rates` fills; the fused kernels read them there.
    """
    named = [(name, p) for name, p in branches.named_parameters() if p.requires_grad]
    groups = [
        {
            "params": [p for name, p in named if name.startswith("predictor.") == is_predictor],
            "lr": torch.zeros((), device=device),
        }
        for is_predictor in (False, True)
    ]
    spec = recipe.optimizer
    if spec.name == "adamw":
        betas = (spec.momentum, 0.999)  # "a momentum of 0.9": App. G
        return torch.optim.AdamW(
            groups, betas=betas, weight_decay=spec.weight_decay, fused=True, capturable=device.type == "cuda"
        )
    return torch.optim.SGD(groups, momentum=spec.momentum, weight_decay=spec.weight_decay, fused=True)
