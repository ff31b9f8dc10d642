"""The command line: `supancl COMMAND`. Every command takes --json FILE, --quiet and --debug."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from supancl import studies
from supancl.config import parsed
from supancl.console import Terminal, make_console, say_error, table
from supancl.errors import BadInput, CheckFailed, SupanclError, nearest
from supancl.recipes import RECIPES, Recipe, recipe
from supancl.run import RunFolder, jsonable


class OneLineParser(argparse.ArgumentParser):
    """argparse's errors as one line, with the nearest command for an unknown one."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message:
            given = message.split("invalid choice: ")[1].split("'")[1]
            choices = self._subparsers._group_actions[0].choices if self._subparsers else ()
            if choices and given not in choices:
                message = f"unknown command {given!r}{nearest(given, choices)}"
        say_error(f"{message} (see {self.prog} --help)")
        raise SystemExit(BadInput.exit_code)


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
    "--data": ("data.source", "digits, toy, an image folder, a .npz or a .csv"),
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
    "--compile": ("train.compile", "compile the branches"),
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
    for field, (value, flag) in args.overrides.items():
        built = built.with_set({field: value}, because=flag)
    return built


# --- commands ---------------------------------------------------------------------------------------------------------


def pretrain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", help="a recipe's name (supancl recipes lists them)")
    parser.add_argument("--out", help="run folder (default: runs/RECIPE-NNN)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--init", help="start the encoder from a run folder or an encoder.safetensors")
    add_recipe_flags(parser)


def pretrain_command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.train import pretrain

    if args.recipe is None and not (args.resume and args.out):
        raise BadInput("name a recipe (supancl recipes lists them), or --resume with --out DIR")
    folder = RunFolder(Path(args.out)) if args.out else None
    if args.resume and folder is not None and folder.holds_run:
        check_agrees(folder.read_recipe()[0], args, folder)
        chosen = None
    elif args.recipe is None:
        raise BadInput(f"{args.out} holds no run to continue; name a recipe to start one")
    else:
        chosen = recipe_from_flags(args.recipe, args)
    run = pretrain(chosen, out=args.out, resume=args.resume, init=args.init, reporter=Terminal(console))
    console.print(f"done: encoder in {run.folder / 'encoder.safetensors'}; judge it with: "
                  f"supancl evaluate knn {run.folder}")
    last = {key: value for row in run.metrics[-2:] for key, value in row.items() if key != "kind"}
    return {"run": str(run.folder), "collapsed": run.collapsed, "last": last}


def check_agrees(kept: Recipe, args: argparse.Namespace, folder: RunFolder) -> None:
    """A run continues with its own settings; whatever is asked for beside --resume must be what it has."""
    if args.recipe is not None and args.recipe != kept.name:
        raise BadInput(f"{folder.path} holds a run of {kept.name}, not of {args.recipe}")
    if args.compat is not None and args.compat != kept.compat:
        raise BadInput(f"--compat {args.compat} differs from {kept.compat!r} in {folder.recipe_file}")
    for field, (value, flag) in args.overrides.items():
        now = dict(kept.fields())[field][0] if field in kept.fields() else None
        if kept.with_set({field: value}).fields()[field][0] != now:
            raise BadInput(f"{flag} differs from {field} = {json.dumps(now)} in {folder.recipe_file}; "
                           "a run continues with its own settings")


def recipes_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show this one, with the source of each value")
    add_recipe_flags(parser)


def recipes_command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
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


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    protocols = parser.add_subparsers(dest="protocol", required=True, parser_class=OneLineParser)
    knn = protocols.add_parser("knn", parents=[common()], help="k nearest neighbours among the training images")
    knn.add_argument("encoder", help="a run folder or an encoder.safetensors")
    knn.add_argument("--data", help="a source (default: the run's own)")
    knn.add_argument("--k", type=int, default=20)
    knn.add_argument("--temperature", type=float, default=0.1)
    knn.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))


def evaluate_command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.judge import knn_of

    if args.k < 1:
        raise BadInput(f"--k {args.k}: must be at least 1")
    if args.temperature <= 0:
        raise BadInput(f"--temperature {args.temperature:g}: must be above 0")
    result = knn_of(args.encoder, args.data, args.k, args.temperature, args.device, Terminal(console))
    console.print(f"k-NN (k = {args.k}): {result['accuracy']:.2f}% of {result['queries']} images, "
                  f"{result['references']} references, {result['classes']} classes")
    return result


def embed_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", help="a run folder or an encoder.safetensors")
    parser.add_argument("--data", required=True, help="digits, an image folder, a .npz or a .csv")
    parser.add_argument("--out", required=True, help="the .npz to write")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))


def embed_command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.judge import embed_to_file

    result = embed_to_file(args.encoder, args.data, Path(args.out), args.device, Terminal(console))
    sizes = ", ".join(f"{name} {count} x {result['width']}" for name, count in result["splits"].items())
    console.print(f"{args.out}: {sizes}")
    return result


COMMANDS: dict[str, tuple[str, Any, Any]] = {
    # name -> (help, arguments, command)
    "recipes": ("list the recipes, or show one", recipes_arguments, recipes_command),
    "pretrain": ("pretrain an encoder", pretrain_arguments, pretrain_command),
    "evaluate": ("judge an encoder", evaluate_arguments, evaluate_command),
    "embed": ("write features of images", embed_arguments, embed_command),
    **{name: (module.HELP, module.arguments, module.command) for name, module in studies.COMMANDS.items()},
}


def common() -> OneLineParser:
    shared = OneLineParser(add_help=False)
    shared.add_argument("--json", metavar="FILE", help="write the result as JSON (-: standard output)")
    shared.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return shared


def build_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="supancl", description="Pretrain image encoders with (supervised) ANCL.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name, (text, arguments, _) in COMMANDS.items():
        # a command with protocols below it gives the common flags to those
        parents = [] if name == "evaluate" else [common()]
        arguments(commands.add_parser(name, parents=parents, help=text, description=text))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    console = make_console(args.quiet, args.json == "-")
    try:
        result = COMMANDS[args.command][2](args, console)
        write_json(args.json, result)
        return 0
    except CheckFailed as error:
        write_json(args.json, error.result)
        return report_error(error, args.debug)
    except SupanclError as error:
        return report_error(error, args.debug)
    except KeyboardInterrupt:
        say_error("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        return 0
    except MemoryError:
        say_error("out of memory; lower --batch-size or data.memory_gb")
        return BadInput.exit_code
    except Exception as error:
        return report_error(error, args.debug, "internal error, please report it with --debug: ")


def report_error(error: Exception, debug: bool, prefix: str = "") -> int:
    if debug:
        traceback.print_exc()
    text = " ".join(str(error).split()) or type(error).__name__
    say_error(prefix + (f"{type(error).__name__}: {text}" if prefix else text))
    return getattr(error, "exit_code", 1)


def write_json(where: str | None, result: dict[str, Any]) -> None:
    if where is None:
        return
    text = json.dumps(jsonable(result), indent=2)
    if where == "-":
        print(text)
        return
    try:
        Path(where).write_text(text + "\n")
    except OSError as error:
        raise BadInput(f"--json {where}: cannot be written ({error.strerror})") from None


def entry() -> None:
    sys.exit(main())


if __name__ == "__main__":
    entry()
