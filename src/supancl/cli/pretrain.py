"""`supancl pretrain`."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.console import Terminal
from supancl.cli.flags import recipe_from_flags
from supancl.config import MAY_CHANGE_ON_RESUME, fields_marked, flattened
from supancl.errors import BadInput, program
from supancl.recipes import Recipe
from supancl.recipes.recipe import resolve_warmup
from supancl.training.preflight import is_same_or_moved, other_settings
from supancl.training.pretrain import pretrain
from supancl.weights.run_folder import RunFolder


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.recipe is None and not (args.resume and args.out):
        raise BadInput("name a recipe (supancl recipes lists them), or --resume with --out DIR")
    if args.resume and args.init is not None:
        raise BadInput("--init starts a run and --resume continues one; give one of them")
    folder = RunFolder(Path(args.out)) if args.out else None
    if args.resume and folder is not None and folder.holds_run:
        kept = folder.read_recipe()[0]
        check_agrees(kept, args, folder)
        free = {*fields_marked(kept, MAY_CHANGE_ON_RESUME), "data.source"}
        how = {field: value for field, (value, _) in args.overrides.items() if field in free}
        chosen = kept.with_set(how) if how else None
    else:  # without a recipe: where several machines train, the run may lie on the first one's disk alone
        chosen = None if args.recipe is None else recipe_from_flags(args.recipe, args)
    run = pretrain(chosen, out=args.out, resume=args.resume, init=args.init, reporter=Terminal(console))
    made = RunFolder(run.folder)
    labelled = not made.holds_run or made.read_data()[0].get("labelled", True)  # other ranks may not see it
    console.print(
        f"done: encoder in {run.folder / 'encoder.safetensors'}; judge it with: {program()} evaluate knn "
        f"{shlex.quote(str(run.folder))}{'' if labelled else ' --data LABELLED_IMAGES'}"
        f"{''.join(f' --plugin {shlex.quote(file)}' for file in args.plugin)}"
    )
    last = {key: value for row in run.metrics[-2:] for key, value in row.items() if key != "kind"}
    return {"run": str(run.folder), "collapsed": run.collapsed, "last": last}


def check_agrees(kept: Recipe, args: argparse.Namespace, folder: RunFolder) -> None:
    """A run continues with its own settings; whatever is asked for beside --resume must be what it has.

    But for how its steps are run, and what is done where one gave no numbers: where the compiler or a loss fails, one
    may go on without.
    """
    if args.recipe is not None and args.recipe != kept.name:
        raise BadInput(f"{folder.path} holds a run of {kept.name}, not of {args.recipe}; choose another --out")
    if args.compat is not None and args.compat != kept.compat:
        raise BadInput(
            f"--compat {args.compat} differs from {kept.compat!r} in {folder.recipe_file}; "
            "a run continues with its own settings"
        )
    free = fields_marked(kept, MAY_CHANGE_ON_RESUME)
    for field, (value, flag) in args.overrides.items():
        if field in free or (field == "data.source" and is_same_or_moved(str(value), kept.data.source)):
            continue
        asked = resolve_warmup(kept.with_set({field: value}))
        if replace(asked, sources={}) != replace(kept, sources={}):
            now = flattened(kept).get(field)
            raise BadInput(
                f"{flag} differs from {field} = {json.dumps(now)} in {folder.recipe_file}; "
                f"{other_settings(field, folder)}"
            )
