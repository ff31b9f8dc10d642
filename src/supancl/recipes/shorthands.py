"""Names of settings without their section: `epochs` for `train.epochs`, as flags and keyword arguments use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from typing_extensions import TypedDict

from supancl.config import parse_value
from supancl.errors import BadInput
from supancl.recipes.recipe import Recipe

GIVEN = "given"  # the source of a value that the user named
FIELDS = {"size": "views.size", "encoder": "encoder.name", "columns": "data.columns"}  # the last part is another's too


class RecipeSettings(TypedDict, total=False):
    """Settings of the recipe; `set` takes any other field.

    Parameters
    ----------
    method
        supsiam, simsiam, supbyol, byol, supcon, simclr, supmoco, moco2, semi or crossentropy, where no recipe is named
    encoder
        architecture: cnn, cifar-resnet18, resnet18, resnet50, vit-small, timm:NAME, torchvision:NAME; in Python also a
        torch module
    size
        side of the views in pixels
    epochs
        number of epochs
    batch_size
        images per step
    lr
        learning rate for the recipe's reference batch
    alpha
        weight of the loss that needs no labels, from 0 to 1
    columns
        columns of a .csv, if they have other names: image=file,label=species[,split=part]; label=cat+dog: one column of
        weights per class
    skip_bad_images
        list unreadable images and leave them out
    seed
        seed of weights, order and views
    device
        auto, cpu, cuda or cuda:N
    precision
        auto, fp32 or bf16
    accumulate
        micro-batches per step
    checkpoint_every
        steps between checkpoints, besides those at the end of epochs
    compile
        compile the step
    deterministic
        bit-exact results on a GPU too (slower)
    on_collapse
        what to do when the representation collapses
    """

    method: str
    encoder: str
    size: int
    epochs: int
    batch_size: int
    lr: float
    alpha: float
    columns: str
    skip_bad_images: bool
    seed: int
    device: str
    precision: Literal["auto", "fp32", "bf16"]
    accumulate: int
    checkpoint_every: int
    compile: bool
    deterministic: bool
    on_collapse: Literal["warn", "stop"]


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with these settings; a name without a dot is the field that ends in it.

    >>> from supancl.recipes import recipe
    >>> changed = with_settings(recipe("cifar100.supsiam"), {"epochs": 10, "alpha": 0.3, "size": 64})
    >>> changed.train.epochs, changed.loss.alpha, changed.encoder.size
    (10, 0.3, 64)
    """
    # NumPy's numbers as Python's, because a grid of values often holds them; a torch.device as its name
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    named = {
        full_name(recipe, name): str(value) if type(value).__module__ == "torch" else value
        for name, value in plain.items()
    }
    return recipe.with_set(named, because=GIVEN)  # all at once: two fields may be valid only together


def full_name(recipe: Recipe, name: str) -> str:
    """The dotted name of a field; a name that no field ends in is returned as it is, for `with_set` to refuse.

    >>> from supancl.recipes import recipe
    >>> full_name(recipe("cifar100.supsiam"), "lr")
    'optimizer.lr'
    """
    if "." in name or name in FIELDS:
        return FIELDS.get(name, name)
    fields = [field for field in recipe.fields() if field.rpartition(".")[2] == name and "." in field]
    if len(fields) > 1:
        raise BadInput(f"{name!r} may be {' or '.join(fields)}; write one of these")
    return fields[0] if fields else name


def parse_set(given: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    """The settings of `set`: a mapping in Python, FIELD=VALUE on the command line, with VALUE as JSON or a string.

    >>> parse_set(["loss.alpha=0.3", "encoder.name=cnn"]), parse_set({"loss.alpha": 0.3})
    ({'loss.alpha': 0.3, 'encoder.name': 'cnn'}, {'loss.alpha': 0.3})
    """
    if isinstance(given, Mapping):
        return dict(given)
    settings = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"{text}: must be FIELD=VALUE, such as loss.alpha=0.3")
        settings[name] = parse_value(value)
    return settings
