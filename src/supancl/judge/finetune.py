"""Full fine-tuning: the encoder and a new classifier trained together, for those whose next step that is."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from supancl.checkpoint import save_encoder
from supancl.data.order import epoch_order, seeded
from supancl.data.sources import Split, resident
from supancl.data.views import Crops, evaluation_view
from supancl.encoders import Encoder
from supancl.errors import BadInput, NonFinite
from supancl.evaluate.linear import hold_out
from supancl.evaluate.transfer import accuracy
from supancl.files import write_atomically
from supancl.judge.protocols import file_name, finished
from supancl.judge.subject import Subject, data_for, own_source


@dataclass(frozen=True)
class FineTuning:
    """SGD with Nesterov momentum and a cosine, on random crops and flips."""

    epochs: int = 20
    batch_size: int = 64
    lrs: tuple[float, ...] = (0.01, 0.03, 0.1)  # of a batch of 256; the best on held-out training images is taken
    weight_decay: float = 1e-4
    seed: int = 0


def finetune_of(
    subject: Subject, source: str | None = None, how: FineTuning | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Learning rates are compared on a tenth of the training images; the winner is trained on all, tested once."""
    since, how = time.perf_counter(), how or FineTuning()
    data = data_for(subject, source)
    train = data.train.take((data.train.labels >= 0).nonzero()[:, 0])
    test = data.held_out.take((data.held_out.labels >= 0).nonzero()[:, 0])
    if len(data.classes) < 2 or len(train) < 2 or not len(test):
        raise BadInput(f"{own_source(subject, source)}: fine-tuning needs labelled images of two classes, both to "
                       f"train on and to judge; there are {len(train)} and {len(test)}")
    if out is not None and out.exists():
        raise BadInput(f"{out} exists; remove it or choose another --out")
    classes, chosen, tried = len(data.classes), how.lrs[0], {}
    if len(how.lrs) > 1:
        held = hold_out(train.labels)
        fit, judge = train.take((~held).nonzero()[:, 0]), train.take(held.nonzero()[:, 0])
        for lr in how.lrs:
            model = trained(subject, fit, classes, lr, how)
            tried[lr] = accuracy(predictions(model, judge, subject), judge.labels)
            subject.reporter.note(f"learning rate {lr:g}: {tried[lr]:.2f}% on {len(judge)} held-out training images")
        chosen = max(how.lrs, key=lambda lr: tried[lr])
    model = trained(subject, train, classes, chosen, how)
    answers = predictions(model, test, subject)
    result = finished(
        subject, file_name("finetune", subject, source), since, protocol="finetune", data=own_source(subject, source),
        accuracy=accuracy(answers, test.labels), mean_per_class=accuracy(answers, test.labels, "mean-per-class"),
        lr=chosen, tried={f"{lr:g}": value for lr, value in tried.items()}, epochs=how.epochs,
        batch_size=how.batch_size, weight_decay=how.weight_decay, seed=how.seed, images=len(train), queries=len(test),
        classes=classes, held_out_from=data.described["held_out_from"],
    )
    if out is not None:
        save(model, data.classes, out)
    return result


class Classifier(nn.Module):
    """An encoder with a linear layer on top."""

    def __init__(self, encoder: Encoder, classes: int, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.width, classes)
        with torch.no_grad():
            drawn = torch.randn(self.head.weight.shape, generator=torch.Generator().manual_seed(seed))
            self.head.weight.copy_(0.01 * drawn)
            self.head.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))  # type: ignore[no-any-return]


def trained(subject: Subject, train: Split, classes: int, lr: float, how: FineTuning) -> Classifier:
    device = subject.look.device
    model = Classifier(copy.deepcopy(subject.encoder), classes, how.seed).to(device)
    encoder, batch_size = model.encoder, min(how.batch_size, len(train))
    model.requires_grad_(True)
    model.train()
    views = Crops(size=encoder.size, scale=(0.2, 1.0), jitter=0.0, grey=0.0, blur=0.0)
    steps = how.epochs * (len(train) // batch_size)
    peak = lr * batch_size / 256
    optimizer = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9, nesterov=True,
                                weight_decay=how.weight_decay)
    cosine = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    generator = torch.Generator(device).manual_seed(seeded(how.seed, 4))
    here, labels = resident(train, device), train.labels.to(device)
    total = torch.zeros((), device=device)
    for step in range(steps):
        epoch, at = divmod(step, len(train) // batch_size)
        order = epoch_order(len(train), how.seed, epoch)
        positions = order[at * batch_size : (at + 1) * batch_size].to(here.index.device)
        batch = here.batch(positions).to(device)
        view = views(batch, encoder.mean, encoder.std, generator, views=1)[0]
        with _precision(device):
            loss = F.cross_entropy(model(view).float(), labels[positions.to(device)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        cosine.step()
        total += loss.detach()
        subject.reporter.reading(f"fine-tuning, lr {lr:g}", step + 1, steps)
    if not bool(torch.isfinite(total)):
        raise NonFinite(f"fine-tuning with lr {lr:g}: the loss is not a finite number; try a lower --lr")
    return model.eval()


@torch.inference_mode()
def predictions(model: Classifier, split: Split, subject: Subject) -> Tensor:
    device, encoder = subject.look.device, model.encoder
    answers = []
    for positions in torch.arange(len(split)).split(subject.look.batch_size):
        batch = split.batch(positions).to(device)
        with _precision(device):
            answers.append(model(evaluation_view(batch, encoder.size, encoder.mean, encoder.std)).argmax(1).cpu())
    return torch.cat(answers)


def _precision(device: torch.device) -> Any:
    bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast("cuda", dtype=torch.bfloat16) if bf16 else nullcontext()


def save(model: Classifier, classes: Sequence[str], out: Path) -> None:
    """encoder.safetensors as any other, and the linear layer beside it."""
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"cannot write in {out} ({error.strerror}); choose another --out") from None
    save_encoder(out / "encoder.safetensors", model.encoder, tuple(classes), "finetuned")
    head = {name: value.detach().cpu().contiguous() for name, value in model.head.state_dict().items()}
    write_atomically(out / "classifier.safetensors", lambda path: save_file(head, path))
