"""What every command that trains several runs can be told, and the sweep that it makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from supancl.errors import BadInput
from supancl.loggers import open_loggers
from supancl.recipes import Recipe, find_recipe, recipe
from supancl.recipes.shorthands import RecipeSettings, full_name, parse_set
from supancl.reporter import has_reporter
from supancl.reports.terminal import print_warning
from supancl.runs.folder import next_folder
from supancl.training.start import as_sources

if TYPE_CHECKING:
    from supancl.sweeps.runner import Sweep


class SweepSettings(RecipeSettings, total=False):
    """Several runs.

    Parameters
    ----------
    data
        digits, toy, a folder, .npz, .csv, .tar shards, torchvision:NAME@ROOT, hf:NAME; several are joined
    set
        any field of the recipe, such as loss.alpha=0.3
    compat
        follow the paper, or the authors' code
    seeds
        seeds 0 to N - 1
    jobs
        runs in parallel (default: automatic)
    retry
        continue runs that failed in an earlier call (default: only list them)
    out
        folder; an existing one is continued
    logger
        also log to wandb or mlflow; may be given several times
    """

    data: str | list[str]
    set: Mapping[str, Any] | list[str]
    compat: Literal["paper", "released-code"]
    seeds: int
    jobs: int
    retry: bool
    out: str | Path
    logger: list[str]


class SweepRequest:
    """The recipes and the sweep that a command was asked for."""

    def __init__(self, kind: str, options: Mapping[str, Any], seeds: int = 3) -> None:
        self.options = dict(options)
        own = ("data", "set", "compat", "seeds", "jobs", "retry", "out", "logger")
        self.given = {name: value for name, value in options.items() if name not in own}
        self.given |= parse_set(options.get("set"))
        reference = recipe("cifar100.supsiam")  # has every field that a flag names
        self.given = {full_name(reference, name): value for name, value in self.given.items()}
        if sources := as_sources(options.get("data")):
            self.given |= {"data.source": sources[0], "data.joined": tuple(sources[1:])}
        self.out = Path(options.get("out") or next_folder(kind))
        self.seeds = options.get("seeds", seeds)

    def recipe(self, name: Recipe | str | Path) -> Recipe:
        """The recipe with the settings; one that it cannot take is refused with its name."""
        try:
            return find_recipe(name, self.options.get("compat"), self.given)
        except BadInput as error:
            raise BadInput(str(error) if str(name) in str(error) else f"{name}: {error}") from None

    def bare(self, name: Recipe | str | Path) -> Recipe:
        """The recipe without the settings."""
        return find_recipe(name, self.options.get("compat"))

    def refuse(self, varied: Mapping[str, str]) -> None:
        """Refuse settings of fields that the sweep sets itself; `varied` maps each to what to use instead."""
        check_overrides(self.given, varied)

    def sweep(self) -> Sweep:
        """The sweep; each of its runs has the loggers that were named."""
        from supancl.sweeps.runner import Sweep

        # the runs may be trained in other processes, and say nothing but what their loggers warn of
        run_reporter = partial(open_loggers, tuple(self.options.get("logger") or ()), warn=print_warning)
        # several processes would import a user's script again, so from Python runs are trained one by one
        jobs = self.options.get("jobs", None if has_reporter() else 1)
        retry = self.options.get("retry", False)
        return Sweep(self.out, self.seeds, jobs, retry, run_reporter=run_reporter)


def check_overrides(overrides: Mapping[str, Any], varied: Mapping[str, str]) -> None:
    """Refuse settings of fields that the sweep sets; `varied` maps each to what to use instead."""
    for name, instead in varied.items():
        if name in overrides:
            raise BadInput(f"{name} is set by this study; give {instead} instead")
