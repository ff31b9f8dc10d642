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
        rows = [
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
        titles = {
            "name": "name",
            "paper": "in the paper",
            "encoder": "encoder",
            "pixels": "px",
            "epochs": "epochs",
            "batch": "batch",
        }  # not the method: it is the end of the name
        cells = [["" if row[key] is None else str(row[key]) for key in titles] for row in rows]
        overview = table("Recipes", list(titles.values()), cells)
        overview.box, overview.show_edge, overview.padding = SIMPLE_HEAD, False, 0  # fits into 100 columns
        console.print(overview)
        return {"recipes": {r.name: r.paper for r in built.values()}, "rows": rows}
    selected = resolve_warmup(recipe_from_flags(args.name, args))
    fields = selected.fields()
    cells = [[name, json.dumps(value), source] for name, (value, source) in fields.items()]
    console.print(table(f"{selected.name}: {selected.method}, {selected.paper}", ["field", "value", "source"], cells))
    return {"name": selected.name, "fields": {name: {"value": v, "source": s} for name, (v, s) in fields.items()}}
