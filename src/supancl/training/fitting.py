"""Fit a recipe to its run: `auto.METHOD` to the data and the device, the encoder to the weights of --init."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from supancl.config import to_json
from supancl.core.encoders import EncoderSpec, tensor_shapes
from supancl.data.splits import Data, DataSpec
from supancl.data.survey import Survey, survey_data, survey_source
from supancl.errors import BadInput, plural
from supancl.recipes import Recipe
from supancl.recipes.auto import (
    AS_FOR_IMAGENET,
    RULES,
    START,
    START_GAIN,
    TO_BE_CHOSEN,
    default_recipe,
    fit_recipe,
    is_to_be_fitted,
    rival_recipe,
)
from supancl.recipes.recipe import has_fixed_size
from supancl.reporter import Reporter, report_to
from supancl.training.preflight import pick_device
from supancl.weights.start import read_start_spec

LEAST_SIDE = 32  # of photographs, in pixels
LEAST_IMAGES = 2  # to train on: batch norm needs two
SAME_RESNET = re.compile(r"(?:timm|torchvision):(resnet(?:18|34|50|101|152))")


def fit_to_data(
    recipe: Recipe, data: Data | None, init: Path | str | None, reporter: Reporter, survey: Survey | None = None
) -> Recipe:
    """The recipe with every open setting chosen; each choice is reported with its reason."""
    requested = recipe
    if init is not None:
        recipe = follow_start(recipe, init, reporter)
    if not is_to_be_fitted(recipe):
        return recipe
    if survey is None:
        survey = survey_recipe(recipe, reporter) if data is None else survey_data(data)
    fitted = choose_settings(recipe, survey, has_start=init is not None)
    for line in describe_choices(requested, fitted, survey):
        reporter.note(line)
    if (
        recipe.sources.get("encoder.name") == TO_BE_CHOSEN
        and recipe.encoder.channels == 3
        and survey.side >= LEAST_SIDE
    ):
        gain = START_GAIN and f" ({START_GAIN}: docs/starts.md)"
        reporter.note(f"worth most: trained weights{gain}, --init {START}; or without training: predict {START}")
    return fitted


def fit_rows(rows: Mapping[str, Recipe], reporter: Reporter) -> dict[str, Recipe]:
    """Several recipes fitted to their data, which are looked at once; equal choices are reported once."""
    surveys: dict[tuple[DataSpec, int], Survey] = {}
    fitted, reported = dict(rows), set()
    for name, recipe in rows.items():
        if not is_to_be_fitted(recipe):
            continue
        key = recipe.data, recipe.encoder.channels
        surveys[key] = surveys.get(key) or survey_recipe(recipe, reporter)
        fitted[name] = choose_settings(recipe, surveys[key])
        lines = tuple(describe_choices(recipe, fitted[name], surveys[key]))
        for line in lines if lines not in reported else ():
            reporter.note(line)
        reported.add(lines)
    return fitted


def survey_recipe(recipe: Recipe, reporter: Reporter) -> Survey:
    with report_to(reporter):
        return survey_source(recipe.data, recipe.encoder.channels)


def choose_settings(recipe: Recipe, survey: Survey, has_start: bool = False) -> Recipe:
    check_enough_images(recipe.data, survey)
    return fit_recipe(recipe, survey, _is_on_gpu(recipe), has_start)


def check_enough_images(spec: DataSpec, survey: Survey) -> None:
    """Refuse data that no batch size fits, before settings are chosen and reported."""
    if survey.images < LEAST_IMAGES:
        changed = [f"data.{name}" for name in ("leave_out", "limit") if getattr(spec, name) != getattr(DataSpec, name)]
        advice = f"change {' or '.join(changed)}" if changed else "add images"
        raise BadInput(
            f"{spec.location}: {plural(survey.images, 'training image is', 'training images are')} too few, "
            f"{LEAST_IMAGES} are needed besides those held out; {advice}"
        )


def _is_on_gpu(recipe: Recipe) -> bool:
    return pick_device(recipe.train.device).type == "cuda"


def describe_choices(requested: Recipe, fitted: Recipe, survey: Survey) -> Iterator[str]:
    """What the recipe was fitted to, and each setting that was chosen with its reason."""
    yield f"{fitted.name} for {describe_survey(survey)}, on {'a GPU' if _is_on_gpu(fitted) else 'a CPU'}:"
    values, before = fitted.fields(), requested.fields()
    for name in RULES:
        if name in values and before[name] != values[name] and values[name][0] is not None:
            yield f"  {f'{name} = {values[name][0]}':32} {values[name][1]}"
    other = rival_recipe(survey, fitted.train.batch_size)
    if fitted.name == default_recipe(survey) and other is not None:
        yield f"  {f'try also {other}':32} better with {'few' if survey.is_labelled else 'no'} labels: docs/choosing.md"


def describe_survey(survey: Survey) -> str:
    labels = (
        f"{survey.labelled:,} labelled, {plural(survey.classes, 'class', 'classes')}" if survey.classes else "no labels"
    )
    return f"{plural(survey.images, 'training image')}, {labels}, {survey.side} px"


# --- weights to start from --------------------------------------------------------------------------------------------


def follow_start(recipe: Recipe, init: Path | str, reporter: Reporter) -> Recipe:
    """The recipe with the start's encoder if its own is still open; else refuse a start of another architecture."""
    if recipe.sources.get("encoder.name") == TO_BE_CHOSEN:
        return recipe.with_set(_settings_of(read_start_spec(init), recipe), because=f"of the start, {init}")
    try:
        spec = read_start_spec(init)
    except BadInput:
        if not Path(init).is_file():
            raise
        return recipe  # its tensors may have the names of the recipe's encoder
    _check_architecture(recipe.encoder, spec, init)
    for name in ("mean", "std"):
        if getattr(spec, name) != getattr(recipe.encoder, name):
            theirs = json.dumps(to_json(getattr(spec, name)), separators=(",", ":"))
            reporter.note(f"{init} was trained with another {name}: --set 'encoder.{name}={theirs}' takes its own")
    return recipe


def _settings_of(spec: EncoderSpec, recipe: Recipe) -> dict[str, Any]:
    """The fields of the recipe's encoder that follow the start: all that the user did not set."""
    settings: dict[str, Any] = {"encoder.name": plain_name(spec.name)}
    free = {"size": TO_BE_CHOSEN, "width": TO_BE_CHOSEN, "mean": AS_FOR_IMAGENET, "std": AS_FOR_IMAGENET}
    for name, source in free.items():
        if recipe.sources.get(f"encoder.{name}") == source:
            settings[f"encoder.{name}"] = to_json(getattr(spec, name))
    if spec.channels != recipe.encoder.channels:
        settings["encoder.channels"] = spec.channels
    return settings


def _check_architecture(encoder: EncoderSpec, start: EncoderSpec, init: Path | str) -> None:
    """Refuse a start whose weights the encoder cannot take, with the settings that it could."""
    names = ["name", "channels", "width", *["size"] * (encoder.name != "linear" and has_fixed_size(start.name))]
    ours, theirs = (
        {"name": plain_name(spec.name), "channels": spec.channels, "width": spec.width, "size": spec.size}
        for spec in (encoder, start)
    )
    differing = [name for name in names if ours[name] != theirs[name]]
    if not differing or (differing == ["width"] and tensor_shapes(encoder) == tensor_shapes(start)):
        return
    has = ", ".join(f"encoder.{name} = {json.dumps(ours[name])}" for name in differing)
    sets = " ".join(f"--set encoder.{name}={json.dumps(theirs[name])}".replace('"', "") for name in differing)
    raise BadInput(f"--init {init} is a {plain_name(start.name)}, and the recipe has {has}; {sets} fits it")


def plain_name(name: str) -> str:
    """The architecture alone, without timm's tag of the weights; one name for the ResNets that libraries share.

    >>> plain_name("timm:resnet50.a1_in1k"), plain_name("timm:convnext_tiny.in12k"), plain_name("torchvision:vit_b_16")
    ('resnet50', 'timm:convnext_tiny', 'torchvision:vit_b_16')
    """
    name = name.partition(".")[0] if name.startswith("timm:") else name
    match = SAME_RESNET.fullmatch(name)
    return match[1] if match else name
