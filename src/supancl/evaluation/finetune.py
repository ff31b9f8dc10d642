"""Full fine-tuning: the encoder and a new classifier are trained together, by SGD and a cosine."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supancl.core.encoders import Encoder
from supancl.data.opening import absolute_source
from supancl.data.order import derive_seed, epoch_order
from supancl.data.sources.folder import check_out_folder
from supancl.data.splits import Split
from supancl.data.views.render import evaluation_view
from supancl.data.views.specs import Crops
from supancl.distributed.ranks import auto_precision, autocast_for
from supancl.errors import BadInput, NonFinite
from supancl.evaluation import FineTune
from supancl.evaluation.data import resolve_source
from supancl.evaluation.encoder import EvaluatedEncoder, Parts, encoder_key, is_run_source
from supancl.files import Output
from supancl.probes.answers import Answers, Measured, accuracy
from supancl.probes.classifiers import fit_linear_classifier
from supancl.probes.features import hold_out
from supancl.probes.sgd import linear_layer
from supancl.runs.encoder_file import CLASSIFIER_FILE, save_encoder, save_with_classes

FINETUNED = "finetuned"  # the folder inside a run where `predict --with finetuned` looks


def check_fine_tuning(evaluated: EvaluatedEncoder, source: str | None, settings: FineTune) -> None:
    """Refuse what cannot be fine-tuned or written before the data are read, which may take an hour."""
    if evaluated.options.layer != "pooled" or evaluated.options.normalize:
        raise BadInput("fine-tuning trains the whole encoder and a classifier on its output; no layer and normalize")
    if evaluated.encoder.spec.name == "linear":
        raise BadInput(f"{evaluated.location}: fine-tuning crops images, and this encoder takes vectors")
    if settings.out is not None:
        check_out_folder(resolve_source(evaluated, source), Path(settings.out))
        Output(Path(settings.out)).check()


def fine_tune(parts: Parts, settings: FineTune) -> tuple[Measured, dict[str, Any]]:
    """Choose a learning rate on a tenth of the training images, train on all of them, test once."""
    evaluated, data, classes = parts.encoder, parts.data, parts.classes
    train, test = data.splits["train"].labelled(), data.images.labelled()
    best_lr, accuracy_by_lr = choose_lr(evaluated, train, classes, settings)
    model = train_classifier(evaluated, train, classes, best_lr, settings)
    if settings.out is not None:
        is_other = data.source is not None and not is_run_source(evaluated, data.source)
        with Output(Path(settings.out)).folder() as folder:
            save(model, data.classes, folder, absolute_source(str(data.source)) if is_other else "", train)
    said = predict(model, test, evaluated)
    return Answers(said == test.labels, test.labels, train.labels), {
        "mean_per_class": accuracy(said, test.labels, "mean-per-class"),
        "lr": best_lr,
        "tried": {f"{lr:g}": value for lr, value in accuracy_by_lr.items()},
        "images": len(train),
        "queries": len(test),
        "classes": classes,
    }


def choose_lr(
    evaluated: EvaluatedEncoder, train: Split, classes: int, settings: FineTune
) -> tuple[float, dict[float, float]]:
    """The best learning rate on a tenth of the training images (the first of equal ones), and all accuracies."""
    if len(settings.lr) == 1:
        return settings.lr[0], {}
    is_held_out = hold_out(train.labels)
    fit, held_out_images = train.take((~is_held_out).nonzero()[:, 0]), train.take(is_held_out.nonzero()[:, 0])
    accuracy_by_lr: dict[float, float] = {}
    for lr in settings.lr:
        try:
            model = train_classifier(evaluated, fit, classes, lr, settings)
            accuracy_by_lr[lr] = accuracy(predict(model, held_out_images, evaluated), held_out_images.labels)
        except NonFinite:
            accuracy_by_lr[lr] = math.nan
        evaluated.reporter.note(f"learning rate {lr:g}: {accuracy_by_lr[lr]:.2f}% on {len(held_out_images)} images")
    finite = {lr: value for lr, value in accuracy_by_lr.items() if not math.isnan(value)}
    if not finite:
        raise NonFinite(f"fine-tuning: the loss is not finite at any lr of {list(settings.lr)}; try lower ones")
    return max(finite, key=lambda lr: finite[lr]), accuracy_by_lr


class Classifier(nn.Module):
    """An encoder with a linear layer on top."""

    def __init__(self, encoder: Encoder, classes: int, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = linear_layer(encoder.width, classes, seed)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))  # type: ignore[no-any-return]


def plain_crops(evaluated: EvaluatedEncoder, scale: tuple[float, float]) -> Crops:
    """Random crops without colour changes; the flip probability is that of the run's recipe."""
    views = None if evaluated.recipe is None else evaluated.recipe.views
    flip = views.flip if isinstance(views, Crops) else 0.5
    return Crops(size=evaluated.encoder.size, scale=scale, flip=flip, jitter=0.0, grey=0.0, blur=0.0)


def train_classifier(
    evaluated: EvaluatedEncoder, train: Split, classes: int, lr: float, settings: FineTune
) -> Classifier:
    """Train a copy of the encoder with a new linear layer; the caller's random state does not change."""
    device = evaluated.options.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(settings.seed)  # for dropout
        model = Classifier(copy.deepcopy(evaluated.encoder), classes, settings.seed).to(device)
        if settings.probe_first:
            features = evaluated.features(train)
            probe, _ = fit_linear_classifier(features, features.take(torch.arange(0)), classes, device)
            model.head.load_state_dict({"weight": probe.weight, "bias": probe.bias})
        model.requires_grad_(True)
        encoder, batch_size = model.encoder, min(settings.train_batch, len(train))
        encoder.freeze_norm = settings.freeze_norm
        model.train()
        views = Crops(size=encoder.size) if settings.views == "pretraining" else plain_crops(evaluated, (0.2, 1.0))
        steps_per_epoch = len(train) // batch_size
        steps = settings.epochs * steps_per_epoch
        rate, decay = lr * batch_size / 256, settings.weight_decay
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, nesterov=True, weight_decay=decay)
        cosine = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
        generator = torch.Generator(device).manual_seed(derive_seed(settings.seed, 4))
        resident, labels = train.place_on(device), train.labels.to(device)
        total = torch.zeros((), device=device)
        for step in range(steps):
            epoch, batch_index = divmod(step, steps_per_epoch)
            order = epoch_order(len(train), settings.seed, epoch)
            positions = order[batch_index * batch_size : (batch_index + 1) * batch_size]
            batch = resident.batch(positions.to(resident.index.device)).to(device)
            view = views(batch, encoder.mean, encoder.std, generator, views=1)[0]
            with autocast_for(device, auto_precision(device)):
                loss = F.cross_entropy(model(view).float(), labels[positions.to(device)])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            cosine.step()
            total += loss.detach()
            evaluated.reporter.on_progress(f"fine-tuning, lr {lr:g}", step + 1, steps)
    if not bool(torch.isfinite(total)):
        raise NonFinite(f"fine-tuning with lr {lr:g}: the loss is not finite; try a lower lr")
    return model.eval()


@torch.inference_mode()
def predict(model: Classifier, split: Split, evaluated: EvaluatedEncoder) -> Tensor:
    device, encoder = evaluated.options.device, model.encoder
    answers = []
    for positions in torch.arange(len(split)).split(evaluated.options.batch_size):
        batch = split.batch(positions).to(device)
        with autocast_for(device, auto_precision(device)):
            answers.append(model(evaluation_view(batch, encoder.size, encoder.mean, encoder.std)).argmax(1).cpu())
    return torch.cat(answers)


def save(model: Classifier, classes: Sequence[str], out: Path, source: str, train: Split) -> None:
    """Write encoder.safetensors, and the linear layer with its class names as classifier.safetensors."""
    save_encoder(out / "encoder.safetensors", model.encoder, tuple(classes), "finetuned", train.median_short_side())
    layer = {"weight": model.head.weight, "bias": model.head.bias}
    about = {"source": source, "made_from": encoder_key(model.encoder)}
    save_with_classes(out / CLASSIFIER_FILE, layer, tuple(classes), **about)
