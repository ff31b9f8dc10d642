"""The warm-up of `semi`, fitted to the steps of a run; and lines for the user about a warm-up that was shortened."""

from __future__ import annotations

from supancl.core.losses import SemiAlign
from supancl.recipes.recipe import OUR_CHOICE, Recipe


def resolve_label_warmup(recipe: Recipe, images: int) -> Recipe:
    """Return the recipe with a `loss.warmup` of at most half of the steps that `images` give.

    Else a short run of semi would end before it begins to use images without a label. A value that someone has set, and
    one that `auto.semi` has fitted, stays.
    """
    if not isinstance(recipe.loss, SemiAlign) or not recipe.fields()["loss.warmup"][1].startswith(OUR_CHOICE):
        return recipe
    steps = count_steps(recipe, images)
    if recipe.loss.warmup <= steps // 2:
        return recipe
    reason = f"half of {steps:,} steps: {recipe.loss.warmup:,} would leave too few to use images without a label in"
    return recipe.with_set({"loss.warmup": steps // 2}, because=reason)


def count_steps(recipe: Recipe, images: int) -> int:
    """The steps of a run on this many training images."""
    return images // recipe.train.batch_size * recipe.train.epochs


def describe_resolution(requested: Recipe, resolved: Recipe, images: int | None = None) -> list[str]:
    """Lines for the user on what `resolve_warmup` and, if `images` are known, `resolve_label_warmup` have changed.

    A `loss.warmup` that stays and outlasts the run has a line too.
    """
    lines = []
    before, after = requested.schedule.warmup_epochs, resolved.schedule.warmup_epochs
    if before != after:
        lines.append(
            f"schedule.warmup_epochs = {after} instead of {before}: at most half of train.epochs = "
            f"{resolved.train.epochs}, so that the learning rate reaches its peak and decays"
        )
    if images is None or not (isinstance(requested.loss, SemiAlign) and isinstance(resolved.loss, SemiAlign)):
        return lines
    steps, label_warmup = count_steps(resolved, images), resolved.loss.warmup
    if label_warmup != requested.loss.warmup:
        lines.append(
            f"loss.warmup = {label_warmup} instead of {requested.loss.warmup}: at most half of the {steps:,} steps, so "
            "that images without a label are drawn to classes in the other half"
        )
    elif label_warmup >= steps:
        lines.append(
            f"loss.warmup = {label_warmup} outlasts the {steps:,} steps, so images without a label are trained as by "
            "supsiam in all of them"
        )
    return lines
