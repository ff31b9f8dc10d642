"""`supancl recipes`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console

from supancl.console import table
from supancl.flags import add_recipe_flags, recipe_from_flags
from supancl.recipes import RECIPES, recipe


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show this one, with the source of each value")
    add_recipe_flags(parser)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.name is None:
        built = {name: recipe(name) for name in RECIPES}
        rows = [[r.name, r.paper, f"{r.train.epochs}", f"{r.train.batch_size}"] for r in built.values()]
        console.print(table("Recipes", ["name", "in the paper", "epochs", "batch"], rows))
        return {"recipes": {r.name: r.paper for r in built.values()}}
    chosen = recipe_from_flags(args.name, args)
    fields = chosen.fields()
    rows = [[name, json.dumps(value), source] for name, (value, source) in fields.items()]
    console.print(table(f"{chosen.name}: {chosen.method}, {chosen.paper}", ["field", "value", "source"], rows))
    return {"name": chosen.name, "fields": {name: {"value": v, "source": s} for name, (v, s) in fields.items()}}
