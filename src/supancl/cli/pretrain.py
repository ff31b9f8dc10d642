"""`supancl pretrain`."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.flags import recipe_from_flags
from supancl.cli.loggers import reporter_from_flags
from supancl.config import MAY_CHANGE_ON_RESUME, fields_marked, flattened
from supancl.data.survey import Survey, survey_source
from supancl.errors import BadInput, program_name
from supancl.recipes import Recipe
from supancl.recipes.auto import default_recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.reports.sparklines import describe_curves
from supancl.training.extending import extend_run
from supancl.training.preflight import advice_for_changed_setting, is_same_or_moved
from supancl.training.pretrain import Run, pretrain
from supancl.weights.run_folder import RunFolder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    survey = None
    if args.recipe is None and "data.source" in args.overrides and not args.resume and args.extend is None:
        requested = recipe_from_flags("auto.supsiam", args)
        survey = survey_source(requested.data, requested.encoder.channels)
        args.recipe = default_recipe(survey)
    if args.recipe is None and args.extend is None and not (args.resume and args.out):
        raise BadInput(
            "give images with --data FOLDER (docs/own-data.md), a recipe (supancl recipes lists them), or --resume "
            "with --out DIR"
        )
    if args.resume and args.init is not None:
        raise BadInput("--init starts a run and --resume continues one; give only one of them")
    folder = RunFolder(Path(args.out)) if args.out else None
    resumes = args.resume and folder is not None and folder.has_run
    run = extend(args, console) if args.extend is not None and not resumes else train(args, folder, survey, console)
    if console.encoding.startswith("utf"):
        for line in describe_curves(run.metrics):
            console.print(line)
    run_folder = RunFolder(run.folder)
    # other ranks may not see the folder
    about = run_folder.read_data()[0] if run_folder.has_run else {}
    can_test_itself = about.get("labelled", 1) and about.get("held_out", 1) and about.get("classes", 2) > 1
    console.print(
        f"done: encoder in {run.folder / 'encoder.safetensors'}; evaluate it with: {program_name()} evaluate knn "
        f"{shlex.quote(str(run.folder))}{'' if can_test_itself else ' --data LABELLED_IMAGES'}"
        f"{''.join(f' --plugin {shlex.quote(file)}' for file in args.plugin)}"
    )
    last = {key: value for row in run.metrics[-2:] for key, value in row.items() if key != "kind"}
    return {"run": str(run.folder), "collapsed": run.collapsed, "last": last}


def extend(args: argparse.Namespace, console: Console) -> Run:
    """Continue the finished run of --extend in another folder."""
    for flag, value in (("the recipe", args.recipe), ("--init", args.init), ("--compat", args.compat)):
        if value is not None:
            raise BadInput(f"--extend {args.extend} continues that run with its own settings; leave out {flag} {value}")
    changes = {field: value for field, (value, _) in args.overrides.items()}
    epochs = changes.pop("train.epochs", None)
    if not isinstance(epochs, int):
        raise BadInput(f"--extend {args.extend}: give --epochs N, the epoch to continue to, counted from the first")
    return extend_run(args.extend, epochs, args.out, changes=changes, reporter=reporter_from_flags(args, console))


def train(args: argparse.Namespace, folder: RunFolder | None, survey: Survey | None, console: Console) -> Run:
    """Start the run that the flags describe, or resume it."""
    if args.resume and folder is not None and folder.has_run and args.recipe_file is None:
        saved = folder.read_recipe()[0]
        check_agrees(saved, args, folder)
        free = {*fields_marked(saved, MAY_CHANGE_ON_RESUME), "data.source", "data.joined"}
        changes = {field: value for field, (value, _) in args.overrides.items() if field in free}
        to_train = saved.with_set(changes) if changes else None
    else:  # without a recipe: with several machines, the run may be on the first one's disk alone
        to_train = None if args.recipe is None else recipe_from_flags(args.recipe, args)
    reporter = reporter_from_flags(args, console)
    return pretrain(to_train, out=args.out, resume=args.resume, init=args.init, reporter=reporter, survey=survey)


def check_agrees(saved: Recipe, args: argparse.Namespace, folder: RunFolder) -> None:
    """Refuse flags that differ from the saved recipe of a resumed run.

    Fields that may change on resume are free: without the compiler, for example, if that failed.
    """
    if args.recipe is not None and args.recipe != saved.name:
        raise BadInput(f"{folder.path} holds a run of {saved.name}, not of {args.recipe}; choose another --out")
    if args.compat is not None and args.compat != saved.compat:
        raise BadInput(
            f"--compat {args.compat} differs from {saved.compat!r} in {folder.recipe_file}; "
            "a run continues with its own settings"
        )
    free = fields_marked(saved, MAY_CHANGE_ON_RESUME)
    for field, (value, flag) in args.overrides.items():
        places = {"data.source": saved.data.source, "data.joined": saved.data.joined}
        if field in free or (field in places and is_same_or_moved(value, places[field])):
            continue
        requested = resolve_warmup(saved.with_set({field: value}))
        if replace(requested, sources={}) != replace(saved, sources={}):
            saved_value = flattened(saved).get(field)
            raise BadInput(
                f"{flag} differs from {field} = {json.dumps(saved_value)} in {folder.recipe_file}; "
                f"{advice_for_changed_setting(field, folder)}"
            )
