"""Checks before a run: whether its loss and its pool can learn from the labels of its images."""

from __future__ import annotations

from dataclasses import replace

from supancl.core.specs import PoolSpec
from supancl.data.label_pairs import check_one_label
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.sources.folder import ONLY_CLASS
from supancl.data.splits import Data
from supancl.errors import BadInput
from supancl.recipes import Recipe


def check_labels(recipe: Recipe, data: Data) -> None:
    """Refuse labels that tell a supervised method nothing: none, or the same for all images."""
    if not recipe.loss.supervised:
        return
    source, present = str(data.summary.get("source") or "the data"), data.train.class_ids()
    if not present:
        way_out = "give data=(images, labels)" if source == FROM_PYTHON else "put images into class folders"
        raise BadInput(
            f"{source}: no training image has a label, which {recipe.method} needs; {way_out}, or use simsiam or byol"
        )
    if len(present) == 1:
        # remarks are not shown when the data are refused, so this one is part of the message
        hints = "".join(f" ({remark})" for remark in data.remarks if ONLY_CLASS in remark)
        if source == FROM_PYTHON and data.train.num_labelled < len(data.train):
            hints += " (-1 means no label)"
        raise BadInput(
            f"{source}: only one class, {data.classes[present[0]]!r}, has training images; "
            f"{recipe.method} needs two, or use simsiam or byol" + hints
        )
    if data.train.pairs is not None and data.train.num_distinct_labels == 1:
        names = ", ".join(data.classes[number] for number in present)
        raise BadInput(
            f"{source}: all training images with a label have the same classes and weights ({names[:80]}), so "
            f"{recipe.method} learns nothing from them; add images with others, or use simsiam or byol"
        )


def fit_labels(recipe: Recipe, data: Data) -> Data:
    """The data with labels that the loss and the pool can take; refused if they need labels and cannot take these."""
    pairs, source = data.train.pairs, str(data.summary.get("source") or "the data")
    if pairs is None:
        return data
    if not recipe.loss.takes_pairs or type(recipe.pool) is not PoolSpec:
        if recipe.loss.supervised:
            what = f"loss.kind = {recipe.loss.kind} with pool.kind = {recipe.pool.kind}"
            check_one_label(pairs, source, what, is_nested=bool(data.levels))
        return replace(data, train=replace(data.train, pairs=None))
    compares_targets = recipe.loss.needs_pool and recipe.loss.stores_unlabelled  # not means of classes
    if compares_targets and recipe.pool.kind == "class-queues" and pairs.shape[1] > 1:
        raise BadInput(
            f"{source}: its images have up to {pairs.shape[1]} labels, so class queues hold copies of a target, which "
            f"{recipe.method} would compare with each; --set pool.kind=queue"
        )
    if getattr(recipe.loss, "form", "") == "binary" and float(pairs[..., 1].max()) > 1:
        raise BadInput(
            f"{source}: a label has weight {float(pairs[..., 1].max()):g}, and with loss.form = binary weights are "
            "probabilities, at most 1; use --set loss.form=softmax"
        )
    return data
