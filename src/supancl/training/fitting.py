"""Fit `auto.METHOD` to the data and the device of a run."""

from __future__ import annotations

from pathlib import Path

from supancl.data.splits import Data
from supancl.data.survey import Survey, survey_data, survey_source
from supancl.errors import plural
from supancl.recipes import Recipe
from supancl.recipes.auto import RULES, fit_recipe, is_to_be_fitted
from supancl.reporter import Reporter
from supancl.training.preflight import pick_device
from supancl.training.starting import follow_start


def default_recipe(survey: Survey) -> str:
    """The recipe for data without a recipe: SupSiam if the images have labels, else SimSiam; fitted to them."""
    return "auto.supsiam" if survey.is_labelled else "auto.simsiam"


def fit_to_data(recipe: Recipe, data: Data | None, init: Path | str | None, reporter: Reporter) -> Recipe:
    """The recipe with every open setting chosen; each choice is reported with its reason."""
    requested = recipe
    if init is not None:
        recipe = follow_start(recipe, init, reporter)
    if not is_to_be_fitted(recipe):
        return recipe
    survey = (
        survey_source(recipe.data, recipe.encoder.channels, reporter.on_progress) if data is None else survey_data(data)
    )
    device = pick_device(recipe.train.device)
    fitted = fit_recipe(recipe, survey, device.type == "cuda")
    reporter.note(f"{recipe.name} for {describe_survey(survey)}, on {'a GPU' if device.type == 'cuda' else 'a CPU'}:")
    values = fitted.fields()
    for name in RULES:
        if name in values and requested.fields()[name] != values[name]:
            reporter.note(f"  {f'{name} = {values[name][0]}':32} {values[name][1]}")
    return fitted


def describe_survey(survey: Survey) -> str:
    labels = (
        f"{survey.labelled:,} labelled, {plural(survey.classes, 'class', 'classes')}" if survey.classes else "no labels"
    )
    return f"{plural(survey.images, 'training image')}, {labels}, {survey.side} px"
