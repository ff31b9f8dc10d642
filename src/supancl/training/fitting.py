"""Fit `auto.METHOD` to the data and the device of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from supancl.data.splits import Data, DataSpec
from supancl.data.survey import Survey, survey_data, survey_source
from supancl.errors import BadInput, plural
from supancl.recipes import Recipe
from supancl.recipes.auto import RULES, fit_recipe, is_to_be_fitted
from supancl.reporter import Reporter
from supancl.training.preflight import pick_device
from supancl.training.starting import follow_start

LEAST_IMAGES = 2  # to train on: batch norm needs two


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
    fitted = choose_settings(recipe, survey)
    for line in describe_choices(requested, fitted, survey):
        reporter.note(line)
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
    return survey_source(recipe.data, recipe.encoder.channels, reporter.on_progress)


def choose_settings(recipe: Recipe, survey: Survey) -> Recipe:
    check_enough_images(recipe.data, survey)
    return fit_recipe(recipe, survey, _is_on_gpu(recipe))


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


def describe_survey(survey: Survey) -> str:
    labels = (
        f"{survey.labelled:,} labelled, {plural(survey.classes, 'class', 'classes')}" if survey.classes else "no labels"
    )
    return f"{plural(survey.images, 'training image')}, {labels}, {survey.side} px"
