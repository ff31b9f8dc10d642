"""`supancl recipes`."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console

from supancl.cli.console import table
from supancl.cli.flags import recipe_from_flags
from supancl.recipes import RECIPES, recipe
from supancl.recipes.recipe import resolve_warmup


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if args.name is None:
        built = {name: recipe(name) for name in RECIPES}
        found = [
            {
                "name": r.name,
                "method": r.method,
                "paper": r.paper,
                "encoder": r.encoder.name,
                "pixels": r.views.size if r.views.kind == "crops" else None,
                "epochs": r.train.epochs,
                "batch": r.train.batch_size,
            }
            for r in built.values()
        ]
        shown = {
            "name": "name",
            "paper": "in the paper",
            "encoder": "encoder",
            "pixels": "px",
            "epochs": "epochs",
            "batch": "batch",
        }  # the method is the name's last part
        cells = [["" if row[key] is None else str(row[key]) for key in shown] for row in found]
        laid = table("Recipes", list(shown.values()), cells)
        laid.box, laid.show_edge, laid.padding = SIMPLE_HEAD, False, 0  # fits into 100 columns
        console.print(laid)
        return {"recipes": {r.name: r.paper for r in built.values()}, "rows": found}
    chosen = resolve_warmup(recipe_from_flags(args.name, args))
    fields = chosen.fields()
    rows = [[name, json.dumps(value), source] for name, (value, source) in fields.items()]
    console.print(table(f"{chosen.name}: {chosen.method}, {chosen.paper}", ["field", "value", "source"], rows))
    return {"name": chosen.name, "fields": {name: {"value": v, "source": s} for name, (v, s) in fields.items()}}
