"""Flags: those of every command, those of the ones that train (shorthands for fields of the recipe, and --set)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from supancl.cli.console import say_error
from supancl.config import parsed
from supancl.errors import BadInput, nearest
from supancl.recipes import Recipe, recipe

# what others call a field of the recipe
FIELDS = {
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "temperature": "loss.temperature",
    "arch": "encoder.name",
    "backbone": "encoder.name",
}
ENCODER = "a run folder, an encoder.safetensors, NAME@FILE, or a checkpoint of another library (docs/import.md)"
# what others have a command for, and where it is done here
ELSEWHERE = {
    "export": "an encoder's weights are RUN/encoder.safetensors, for torchvision, timm and torch.export see "
    "docs/own-data.md; a detector: supancl detect export",
    **{
        name: f"did you mean 'evaluate {name}'?"
        for name in ("knn", "linear", "transfer", "fewshot", "variance", "finetune", "suite")
    },
}


class OneLineParser(argparse.ArgumentParser):
    """argparse's errors as one line, with the nearest command for an unknown one.

    `fill` adds the arguments when the parser is used; `spellings` says for a word how that command is to be typed.
    """

    def __init__(
        self,
        *args: Any,
        fill: Callable[[OneLineParser], None] | None = None,
        spellings: Mapping[str, str] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self.fill, self.spellings = fill, spellings or {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The parser of a sub-command refuses what it does not know itself, so that the help named is its own."""
        if self.fill is not None:
            self.fill(self)
            self.fill = None
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown[0])}")
        return found, unknown

    def _meant(self, given: str) -> str:
        """The flag that an unknown one is nearest to, or, where there is --set, the field of a recipe."""
        flag = given.partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        if not flag.startswith("--"):
            return ""
        name = flag[2:].replace("-", "_")
        if "--set" in known:
            fields = [field for field in recipe("cifar100.supsiam").fields() if field.rpartition(".")[2] == name]
            if not fields and name in FIELDS:
                fields = [FIELDS[name]]
            if fields:
                return f"; did you mean {' or '.join(f'--set {field}=X' for field in fields)}?"
        close = get_close_matches(flag, known, n=1, cutoff=0.7)
        return f"; did you mean {close[0]}?" if close else ""

    def _nearest_command(self, given: str, choices: Iterable[str]) -> str:
        close = get_close_matches(given, sorted(self.spellings), n=1, cutoff=0.5)
        return f"; did you mean {self.spellings[close[0]]!r}?" if close else nearest(given, choices)

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message:
            given = message.split("invalid choice: ")[1].split("'")[1]
            choices = self._subparsers._group_actions[0].choices if self._subparsers else ()
            if choices and given not in choices:
                way = "; " + ELSEWHERE[given] if given in ELSEWHERE else self._nearest_command(given, choices)
                message = f"unknown command {given!r}{way}"
        elif self._subparsers and message.startswith("the following arguments are required"):
            message = f"name one of {', '.join(sorted(self._subparsers._group_actions[0].choices or ()))}"
        say_error(f"{' '.join(message.split())} (see {self.prog} --help)")
        raise SystemExit(BadInput.exit_code)


def add_command(below: Any, name: str, module: str, is_group: bool = False, **texts: str) -> None:
    """A command: cli/arguments/MODULE says what it takes, cli/MODULE does it. Each is imported when it is used.

    The second one needs torch, which takes seconds; help and bad input are answered by the first one.
    """

    def fill(parser: OneLineParser) -> None:
        light = import_module(f"supancl.cli.arguments.{module}")
        light.arguments(parser)

        def run(args: argparse.Namespace, console: Any) -> dict[str, Any]:
            if hasattr(light, "check"):
                light.check(args)
            result: dict[str, Any] = import_module(f"supancl.cli.{module}").command(args, console)
            return result

        parser.set_defaults(run=run)  # a command below it puts its own in this place

    # a command with others below it gives the common flags to those
    below.add_parser(name, parents=[] if is_group else [common()], fill=fill, **texts)


def common() -> OneLineParser:
    shared = OneLineParser(add_help=False)
    shared.add_argument("--json", metavar="FILE", help="write the result as JSON (-: standard output)")
    shared.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
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
    """A flag that is a shorthand for a field of the recipe; the last one given wins, --set among them."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        given: dict[str, tuple[Any, str]] = dict(getattr(namespace, "overrides", None) or {})
        if self.dest == "set":
            name, equals, value = str(values).partition("=")
            if not equals:
                parser.error(f"--set {values}: wanted FIELD=VALUE, such as loss.alpha=0.3")
            given[name] = (parsed(value), f"--set {values}")
        elif self.nargs == 0:
            given[self.dest] = (True, str(option))
        else:
            # strings that look like numbers stay what they are where a name is wanted
            literal = values if self.dest == "data.source" else parsed(values)
            given[self.dest] = (literal, f"{option} {values}")
        namespace.overrides = given


SHORTHANDS: dict[str, tuple[str, str]] = {
    # flag -> (field, help)
    "--data": ("data.source", "digits, toy, a folder, .npz, .csv, .tar shards, torchvision:NAME@ROOT, hf:NAME"),
    "--epochs": ("train.epochs", "number of epochs"),
    "--batch-size": ("train.batch_size", "images per step"),
    "--seed": ("train.seed", "seed of weights, order and views"),
    "--device": ("train.device", "auto, cpu or cuda"),
    "--precision": ("train.precision", "fp32 or bf16"),
    "--accumulate": ("train.accumulate", "micro-batches per step"),
    "--checkpoint-every": ("train.checkpoint_every", "steps between checkpoints, beside one an epoch"),
    "--on-collapse": ("train.on_collapse", "warn or stop"),
    "--on-nan": ("train.on_nan", "stop, skip or rollback"),
}
SWITCHES: dict[str, tuple[str, str]] = {
    "--compile": ("train.compile", "compile the step"),
    "--deterministic": ("train.deterministic", "the same bits on every run, on a GPU too (slower)"),
    "--skip-bad-images": ("data.skip_bad_images", "list unreadable images and go on without them"),
}


def add_recipe_flags(parser: argparse.ArgumentParser) -> None:
    """The shorthands and --set, for every command that trains."""
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
    built = recipe(name, args.compat or "paper")
    # all at once: two fields may only be right together
    built = built.with_set({field: value for field, (value, _) in args.overrides.items()})
    return replace(built, sources={**built.sources, **{field: flag for field, (_, flag) in args.overrides.items()}})


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=None, metavar="N", help="runs side by side (default: by itself)")
    parser.add_argument(
        "--retry",
        action="store_true",
        help="go on with runs that failed when this study was started before (default: only list them)",
    )


# --- commands that take encoders --------------------------------------------------------------------------------------


def add_encoder_flags(parser: argparse.ArgumentParser, several: bool = False) -> None:
    parser.add_argument("encoder", nargs="+" if several else None, metavar="ENCODER", help=ENCODER)
    add_feature_flags(parser)


def add_feature_flags(parser: argparse.ArgumentParser) -> None:
    """How features are taken, for commands that name their encoders in another way."""
    add_foreign_flags(parser)
    parser.add_argument(
        "--layer",
        default="pooled",
        help="features of this layer of the encoder (default: its own), or of the run's `projector`",
    )
    parser.add_argument("--normalize", action="store_true", help="features of unit length")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--batch-size", type=int, default=256, help="images encoded at a time")
    parser.add_argument("--no-cache", action="store_true", help="take features anew and do not keep them")
    parser.add_argument(
        "--partial", action="store_true", help="take data sets of the registry that are not whole, and say so"
    )
    add_skip_flag(parser)


def add_view_flag(parser: argparse.ArgumentParser) -> None:
    how = "centre 7/8 of the short side, bilinear; or all of it, bicubic, as for transfer"
    parser.add_argument("--view", default="margin", choices=("margin", "whole"), help=how)


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """What files of other libraries do not say of themselves."""
    parser.add_argument("--size", type=int, help="side of the encoder's input, where its file does not say")
    parser.add_argument("--mean", help="of the encoder's input: a,b,c")
    parser.add_argument("--std", help="of the encoder's input: a,b,c")
    parser.add_argument("--branch", default="online", choices=("online", "target"), help="which, where a file has both")
    parser.add_argument("--prefix", help="of the encoder's tensors, where no known format has it")


def add_skip_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skip-bad-images", action="store_true", help=SWITCHES["--skip-bad-images"][1])
