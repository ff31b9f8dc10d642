"""Flags of every command, and of those that train: shorthands for fields of the recipe, and --set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from supancl.cli.commands import PAPER
from supancl.cli.console import print_error
from supancl.config import parse_value
from supancl.errors import BadInput, did_you_mean
from supancl.recipes import Recipe, recipe
from supancl.recipes.recipe import FIELD_SYNONYMS
from supancl.recipes.recipe_file import is_recipe_file, recipe_from_file

ENCODER = "a run folder, an encoder.safetensors, NAME@FILE, or a checkpoint of another library (docs/import.md)"
# commands that people expect -> where to find them here
OTHER_PLACES = {
    **{name: f"evaluate {name}" for name in ("knn", "linear", "transfer", "fewshot", "variance", "finetune", "suite")},
    **{name: f"paper {name}" for name in PAPER},
}


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line and suggest the nearest command.

    `fill` adds the arguments when the parser is used.
    """

    def __init__(self, *args: Any, fill: Callable[[OneLineParser], None] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fill = fill

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown flags here, not in the parent parser, so that the error names this command's --help."""
        if self.fill is not None:
            self.fill(self)
            self.fill = None
        parsed_args, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggest(unknown[0])}")
        return parsed_args, unknown

    def _suggest(self, argument: str) -> str:
        """A hint: for a flag the nearest one, or a recipe's field if the command has --set; for a path --data."""
        flag = argument.partition("=")[0]
        flags = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        if not flag.startswith("--"):
            return f"; did you mean --data {argument}?" if "--data" in flags and Path(argument).exists() else ""
        name = flag[2:].replace("-", "_")
        if "--set" in flags:
            fields = [field for field in recipe("cifar100.supsiam").fields() if field.rpartition(".")[2] == name]
            if not fields and name in FIELD_SYNONYMS:
                fields = [FIELD_SYNONYMS[name]]
            if fields:
                return f"; did you mean {' or '.join(f'--set {field}=X' for field in fields)}?"
        close = get_close_matches(flag, flags, n=1, cutoff=0.7)
        return f"; did you mean {close[0]}?" if close else ""

    def _nearest_command(self, word: str, choices: Iterable[str]) -> str:
        spellings = {**OTHER_PLACES, **{name: name for name in choices}}
        close = get_close_matches(word, sorted(spellings), n=1, cutoff=0.5)
        return f"; did you mean {spellings[close[0]]!r}?" if close else did_you_mean(word, choices)

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message:
            word = message.split("invalid choice: ")[1].split("'")[1]
            choices = self._subparsers._group_actions[0].choices if self._subparsers else ()
            if choices and word not in choices:
                message = f"unknown command {word!r}{self._nearest_command(word, choices)}"
        elif self._subparsers and message.startswith("the following arguments are required"):
            message = f"name one of {', '.join(sorted(self._subparsers._group_actions[0].choices or ()))}"
        print_error(f"{' '.join(message.split())} (see {self.prog} --help)")
        raise SystemExit(BadInput.exit_code)


def add_command(subparsers: Any, name: str, module: str, is_group: bool = False, **texts: str) -> None:
    """Add a command: cli/arguments/MODULE defines its arguments, cli/MODULE runs it. Each is imported when it is used.

    Only the second imports torch, which takes seconds; help and most bad input need only the first.
    """

    def fill(parser: OneLineParser) -> None:
        definition = import_module(f"supancl.cli.arguments.{module}")
        definition.arguments(parser)

        def run(args: argparse.Namespace, console: Any) -> dict[str, Any]:
            if hasattr(definition, "check"):
                definition.check(args)
            result: dict[str, Any] = import_module(f"supancl.cli.{module}").command(args, console)
            return result

        parser.set_defaults(run=run)  # a subcommand replaces it

    # a command with subcommands passes the common flags on to them
    subparsers.add_parser(name, parents=[] if is_group else [common_flags()], fill=fill, **texts)


def common_flags() -> OneLineParser:
    shared = OneLineParser(add_help=False)
    shared.add_argument("--json", metavar="FILE", help="write the result as JSON (-: standard output)")
    shared.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    shared.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="your own losses, pools, encoders, recipes, benchmarks (docs/extending.md); may be given several times",
    )
    return shared


class Override(argparse.Action):
    """A flag that sets a field of the recipe, or --set; the last one on the command line wins."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        overrides: dict[str, tuple[Any, str]] = dict(getattr(namespace, "overrides", None) or {})
        if self.dest == "set":
            name, equals, value = str(values).partition("=")
            if not equals:
                parser.error(f"--set {values}: must be FIELD=VALUE, such as loss.alpha=0.3")
            overrides[name] = (parse_value(value), f"--set {values}")
        elif option == "--data" and (before := overrides.get("data.source", ("", ""))[1]).startswith("--data "):
            joined = (*overrides.get("data.joined", ((), ""))[0], values)
            overrides["data.joined"] = joined, f"{before} {option} {values}"
        elif self.nargs == 0:
            overrides[self.dest] = (True, str(option))
        else:
            # a source named like a number stays a string
            literal = values if self.dest in ("data.source", "data.columns") else parse_value(values)
            overrides[self.dest] = (literal, f"{option} {values}")
        namespace.overrides = overrides


COLUMNS_HELP = (
    "columns of a .csv, if they have other names: image=file,label=species[,split=part]; "
    "label=cat+dog: one column of weights per class"
)
DATA_HELP = "digits, toy, a folder, .npz, .csv, .tar shards, torchvision:NAME@ROOT, hf:NAME; several are joined"
SHORTHANDS: dict[str, tuple[str, str]] = {
    # flag -> (field, help)
    "--data": (
        "data.source",
        DATA_HELP,
    ),
    "--columns": ("data.columns", COLUMNS_HELP),
    "--epochs": ("train.epochs", "number of epochs"),
    "--batch-size": ("train.batch_size", "images per step"),
    "--seed": ("train.seed", "seed of weights, order and views"),
    "--device": ("train.device", "auto, cpu or cuda"),
    "--precision": ("train.precision", "fp32 or bf16"),
    "--accumulate": ("train.accumulate", "micro-batches per step"),
    "--checkpoint-every": ("train.checkpoint_every", "steps between checkpoints, besides those at the end of epochs"),
    "--on-collapse": ("train.on_collapse", "warn or stop"),
    "--on-nan": ("train.on_nan", "stop, skip or rollback"),
}
SWITCHES: dict[str, tuple[str, str]] = {
    "--compile": ("train.compile", "compile the step"),
    "--deterministic": ("train.deterministic", "bit-exact results on a GPU too (slower)"),
    "--skip-bad-images": ("data.skip_bad_images", "list unreadable images and leave them out"),
}


def add_recipe_flags(parser: argparse.ArgumentParser) -> None:
    """Add the shorthands and --set, for commands that train."""
    for flag, (field, text) in SHORTHANDS.items():
        parser.add_argument(flag, dest=field, action=Override, metavar="X", help=f"{text} ({field})")
    for flag, (field, text) in SWITCHES.items():
        parser.add_argument(flag, dest=field, action=Override, nargs=0, help=f"{text} ({field})")
    parser.add_argument("--set", dest="set", action=Override, metavar="FIELD=VALUE", help="any field of the recipe")
    parser.add_argument(
        "--compat", choices=("paper", "released-code"), default=None, help="follow the paper, or the authors' code"
    )
    parser.set_defaults(overrides={})


def recipe_from_flags(name: str, args: argparse.Namespace) -> Recipe:
    """The recipe of this name, or in this file, with the flags applied."""
    built = recipe_from_file(name, args.compat) if is_recipe_file(name) else recipe(name, args.compat or "paper")
    # all at once: two fields may be valid only together
    built = built.with_set({field: value for field, (value, _) in args.overrides.items()})
    return replace(built, sources={**built.sources, **{field: flag for field, (_, flag) in args.overrides.items()}})


def add_sweep_flags(parser: argparse.ArgumentParser, kind: str, seeds: int = 3) -> None:
    """Add the flags of commands that train several runs: seeds, runs, their folder, and the recipe's."""
    add_seeds_flag(parser, seeds)
    add_run_flags(parser)
    parser.add_argument("--out", help=f"folder (default: runs/{kind}-NNN); an existing one is continued")
    add_recipe_flags(parser)


def add_seeds_flag(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--seeds", type=int, default=default, metavar="N", help=f"seeds 0 to N - 1 (default {default})")


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=None, metavar="N", help="runs in parallel (default: automatic)")
    parser.add_argument(
        "--retry",
        action="store_true",
        help="continue runs that failed in an earlier call (default: only list them)",
    )
    add_logger_flag(parser)


class AddLogger(argparse.Action):
    """--logger NAME; an unknown name, or one whose package is missing, is refused before anything is read."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        from supancl.export.loggers import check_logger

        try:
            check_logger(values)
        except BadInput as error:
            parser.error(str(error))
        namespace.logger = [*namespace.logger, values]


def add_logger_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--logger",
        action=AddLogger,
        default=[],
        metavar="NAME",
        help="also log to wandb or mlflow, offline unless their own variables say otherwise (docs/loggers.md); may be "
        "given several times",
    )


# --- commands that take encoders --------------------------------------------------------------------------------------


def add_encoder_flags(parser: argparse.ArgumentParser, multiple: bool = False) -> None:
    parser.add_argument("encoder", nargs="+" if multiple else None, metavar="ENCODER", help=ENCODER)
    add_feature_flags(parser)


def add_feature_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for features alone, for commands that name their encoders in another way."""
    add_foreign_flags(parser)
    parser.add_argument(
        "--layer",
        default="pooled",
        help="layer whose features are used (default: the encoder's output), or the run's `projector`",
    )
    parser.add_argument("--normalize", action="store_true", help="scale features to unit length")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--batch-size", type=int, default=256, help="images per forward pass")
    parser.add_argument("--no-cache", action="store_true", help="compute features without the cache")
    parser.add_argument("--partial", action="store_true", help="accept incomplete benchmark data sets, with a remark")
    parser.add_argument("--columns", default="", help=COLUMNS_HELP)
    parser.add_argument("--skip-bad-images", action="store_true", help=SWITCHES["--skip-bad-images"][1])


def add_view_flag(parser: argparse.ArgumentParser) -> None:
    text = "margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer"
    parser.add_argument("--view", default="margin", choices=("margin", "whole"), help=text)


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags for what files of other libraries do not contain."""
    parser.add_argument("--size", type=int, help="side of the encoder's input, if its file does not say")
    parser.add_argument("--mean", help="mean of the encoder's input per channel: a,b,c")
    parser.add_argument("--std", help="standard deviation of the encoder's input per channel: a,b,c")
    parser.add_argument(
        "--branch", default="online", choices=("online", "target"), help="which branch, if a file has both"
    )
    parser.add_argument("--prefix", help="prefix of the encoder's tensors, if the format is unknown")
