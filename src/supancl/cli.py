"""The command line: `supancl COMMAND`. Every command takes --json FILE, --quiet and --debug."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from supancl import studies
from supancl.config import flattened
from supancl.console import Terminal, make_console, say_error, table
from supancl.data.sources import same_source
from supancl.errors import BadInput, CheckFailed, SupanclError, nearest
from supancl.flags import SWITCHES, add_recipe_flags, recipe_from_flags
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
        say_error(f"{' '.join(message.split())} (see {self.prog} --help)")
        raise SystemExit(BadInput.exit_code)


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
    if args.resume and args.init is not None:
        raise BadInput("--init starts a run and --resume continues one; give one of them")
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
        raise BadInput(f"{folder.path} holds a run of {kept.name}, not of {args.recipe}; choose another --out")
    if args.compat is not None and args.compat != kept.compat:
        raise BadInput(f"--compat {args.compat} differs from {kept.compat!r} in {folder.recipe_file}; "
                       "a run continues with its own settings")
    for field, (value, flag) in args.overrides.items():
        if field == "data.source" and same_source(str(value), kept.data.source):
            continue
        asked = kept.with_set({field: value})
        if replace(asked, sources={}) != replace(kept, sources={}):
            now = flattened(kept).get(field)
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


def add_skip_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skip-bad-images", action="store_true", help=SWITCHES["--skip-bad-images"][1])


def evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    protocols = parser.add_subparsers(dest="protocol", required=True, parser_class=OneLineParser)
    knn = protocols.add_parser("knn", parents=[common()], help="k nearest neighbours among the training images")
    knn.add_argument("encoder", help="a run folder or an encoder.safetensors")
    knn.add_argument("--data", help="a source (default: the run's own)")
    knn.add_argument("--k", type=int, default=20)
    knn.add_argument("--temperature", type=float, default=0.1)
    knn.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add_skip_flag(knn)


def evaluate_command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.judge import knn_of

    if args.k < 1:
        raise BadInput(f"--k {args.k}: must be at least 1")
    if args.temperature <= 0:
        raise BadInput(f"--temperature {args.temperature:g}: must be above 0")
    result = knn_of(args.encoder, args.data, args.k, args.temperature, args.device, Terminal(console),
                    args.skip_bad_images)
    console.print(f"k-NN (k = {args.k}): {result['accuracy']:.2f}% of {result['queries']} images, "
                  f"{result['references']} references, {result['classes']} classes")
    return result


def embed_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("encoder", help="a run folder or an encoder.safetensors")
    parser.add_argument("--data", required=True, help="digits, an image folder, a .npz or a .csv")
    parser.add_argument("--out", required=True, help="the .npz to write")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add_skip_flag(parser)


def embed_command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.judge import embed_to_file

    result = embed_to_file(args.encoder, args.data, Path(args.out), args.device, Terminal(console),
                           args.skip_bad_images)
    sizes = ", ".join(f"{name} {count} x {result['width']}" for name, count in result["splits"].items())
    console.print(f"{args.out}: {sizes}")
    return result


COMMANDS: dict[str, tuple[str, Any, Any]] = {
    # name -> (help, arguments, command)
    "recipes": ("list the recipes, or show one", recipes_arguments, recipes_command),
    "pretrain": ("pretrain an encoder", pretrain_arguments, pretrain_command),
    "evaluate": ("judge an encoder", evaluate_arguments, evaluate_command),
    "embed": ("write features of images", embed_arguments, embed_command),
}


def arguments_of(name: str) -> Any:
    return COMMANDS[name][1] if name in COMMANDS else import_module(f"supancl.studies.{name}").arguments


def command_of(name: str) -> Any:
    return COMMANDS[name][2] if name in COMMANDS else import_module(f"supancl.studies.{name}").command


def common() -> OneLineParser:
    shared = OneLineParser(add_help=False)
    shared.add_argument("--json", metavar="FILE", help="write the result as JSON (-: standard output)")
    shared.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    shared.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return shared


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the chosen command's own flags are filled in, so that no other study is imported."""
    parser = OneLineParser(prog="supancl", description="Pretrain image encoders with (supervised) ANCL.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=OneLineParser)
    for name, text in {**{name: row[0] for name, row in COMMANDS.items()}, **studies.COMMANDS}.items():
        # a command with protocols below it gives the common flags to those
        parents = [] if name == "evaluate" else [common()]
        parser_of = commands.add_parser(name, parents=parents, help=text, description=text)
        if name == chosen:
            arguments_of(name)(parser_of)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    args = build_parser(next((word for word in words if not word.startswith("-")), None)).parse_args(words)
    console = make_console(args.quiet, args.json == "-")
    try:
        check_json(args.json)
        write_json(args.json, result_of(args, console))
        return 0
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
        if isinstance(error, OSError) and error.filename is not None:  # a path that may not, or cannot, be opened
            place = BadInput(f"{os.fsdecode(error.filename)}: {error.strerror}; check the path and its permissions")
            return report_error(place, args.debug)
        return report_error(error, args.debug, "internal error, please report it with --debug: ")


def result_of(args: argparse.Namespace, console: Console) -> Any:
    try:
        return command_of(args.command)(args, console)
    except CheckFailed as error:
        write_json(args.json, error.result)
        raise


def report_error(error: Exception, debug: bool, prefix: str = "") -> int:
    if debug:
        traceback.print_exc()
    text = " ".join(str(error).split()) or type(error).__name__
    say_error(prefix + (f"{type(error).__name__}: {text}" if prefix else text))
    return getattr(error, "exit_code", 1)


def check_json(where: str | None) -> None:
    """Whether the result can be written is asked before the work, not after it."""
    if where in (None, "-"):
        return
    path = Path(str(where))
    if path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "Permission denied"
    else:
        return
    raise BadInput(f"--json {where}: cannot be written ({reason}); name another file, or - for standard output")


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
        raise BadInput(f"--json {where}: cannot be written ({error.strerror}); name another file, or - for standard "
                       "output") from None


def entry() -> None:
    sys.exit(main())


if __name__ == "__main__":
    entry()
