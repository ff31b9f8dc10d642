"""`compare`: train recipes, methods or settings on the same images, and say which differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from typing_extensions import Unpack

from supancl.distributed import require_single_process
from supancl.errors import BadInput
from supancl.reporter import say, show
from supancl.sweeps.options import SweepRequest, SweepSettings


def compare(*recipes: str, leave_out: float = 0.0, shots: int = 5, **settings: Unpack[SweepSettings]) -> dict[str, Any]:
    """Train several recipes or settings on the same images; compare them.

    Several values of a setting (`set`) are rows of their own, in every combination. All rows have the same seeds and
    held-out images. Nothing is chosen on a test split.

    Parameters
    ----------
    recipes
        recipes or methods by name, or files of settings; the others are compared with the first (default: the one that
        pretrain would choose)
    leave_out
        fraction of the classes left out of pretraining to measure transfer
    shots
        labelled images per left-out class that transfer is fitted on

    Returns
    -------
    dict
        a result for each run, means over seeds, and differences with 95% intervals

    Examples
    --------
    $ supancl compare supsiam simsiam --data photos
    $ supancl compare --data photos --set loss.alpha=0,0.5,1 --leave-out 0.3
    """
    require_single_process("a comparison")
    request = SweepRequest("compare", settings)
    if request.seeds < 1 or shots < 1 or not 0 <= leave_out < 1:
        raise BadInput("seeds and shots must be at least 1, and leave_out must lie in [0, 1)")
    from supancl.reports.comparison import comparison_table, write_comparison
    from supancl.sweeps.comparing import measures_in, train_and_compare
    from supancl.sweeps.grid import grid_rows, recipe_rows, short_names, split_grid
    from supancl.sweeps.runner import check_monitored
    from supancl.training.start import requested_recipe

    names = list(recipes)
    if not names:
        if "data.source" not in request.given:
            raise BadInput("name recipes, or give data, such as a folder of images (docs/own-data.md)")
        base = {key: value for key, value in request.given.items() if key.startswith("data.")}
        names = [requested_recipe(None, None, request.options.get("compat"), base)[0].name]
    bases = [request.bare(name) for name in names]
    single, grid = split_grid(bases[0], request.given)
    request.given = single
    request.refuse({"train.seed": "seeds"})
    if "train.seed" in grid:
        raise BadInput("train.seed: every row has the same seeds; give their number with seeds")
    if grid and len(names) > 1:
        raise BadInput(f"{len(names)} recipes and several values of {', '.join(grid)}: vary one of them")
    if not grid and len(names) < 2:
        raise BadInput(f"{names[0]} alone: name two recipes or more, or several values: set loss.alpha=0,0.5")
    if grid:
        rows, heads, against = grid_rows(request.recipe(names[0]), grid), short_names(grid), "best"
    else:
        rows, heads, against = recipe_rows((name, request.recipe(name)) for name in names), {"row": "recipe"}, "first"
    for recipe in rows.recipes.values():
        check_monitored(recipe)
    epochs = sorted({recipe.train.epochs for recipe in rows.recipes.values()})
    if len(epochs) > 1:
        say(f"the recipes train for {' and '.join(map(str, epochs))} epochs; set epochs to give all the same")
    sweep = request.sweep()
    say(f"rows: {len(rows.recipes)}, seeds: {request.seeds}, {len(rows.recipes) * request.seeds} runs in {request.out}")
    result, runs = train_and_compare(rows.recipes, rows.labels, sweep, against, leave_out, shots)  # type: ignore[arg-type]
    measures = measures_in(result)
    table = comparison_table(result, heads, measures)
    optional = [title for key, (title, _) in reversed(list(measures.items())) if not key.startswith("linear")]
    show(replace(table, optional=optional))
    for line in result["findings"]:
        say(line)
    write_comparison(result, table, measures, request.out)
    say(f"runs and results.json, .md, .tex, .png in {request.out}; {result['seconds']:.0f} s")
    sweep.raise_failed(runs, result)
    return result
