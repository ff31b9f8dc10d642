"""The command line: `supancl COMMAND`. Every command takes --json FILE, --quiet, --debug and --plugin FILE."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path
from textwrap import shorten
from typing import Any, NoReturn

import supancl
from supancl import paper
from supancl.cli.doctor import doctor
from supancl.cli.layer import DEFAULT, Commands, OneLineParser, add_commands, call, summarize
from supancl.distributed import from_environment, should_report_failure
from supancl.errors import (
    BadInput,
    CheckFailed,
    SupanclError,
    is_out_of_memory,
    make_visible,
    program_name,
    set_program_name,
)
from supancl.files import Output, jsonable, make_folder, read_json, reason
from supancl.recipes.plugins import describe_plugin_error, load_plugin
from supancl.reporter import report_to
from supancl.reports import listings
from supancl.reports.tables import wrap_line
from supancl.reports.terminal import Terminal, discard_output, make_console
from supancl.use import detect as detection
from supancl.use import evaluate as evaluation

GROUPS: dict[str, Commands] = {
    "train": {"pretrain": supancl.pretrain, "compare": supancl.compare, "recipes": supancl.list_recipes},
    "evaluate and use": {
        "evaluate": {"": supancl.evaluate, **evaluation.PROTOCOLS},
        "predict": supancl.predict,
        "embed": supancl.embed,
        "export": supancl.export,
        "import": supancl.import_checkpoint,
        "detect": {"train": supancl.detect, "eval": detection.score},
    },
    "look": {
        "report": supancl.report,
        "map": supancl.map,
        "audit": supancl.audit,
        "runs": supancl.list_runs,
        "data": {"show": supancl.show_data, "check": listings.check},
    },
    "this program": {"doctor": doctor},
    "the paper": {
        "paper": {
            "toy": paper.toy,
            "theory": paper.theory,
            "collapse": paper.collapse,
            "study": paper.study,
            "table": paper.table,
            "figure": paper.figure,
        }
    },
}
COMMANDS: Commands = {name: command for group in GROUPS.values() for name, command in group.items()}


class GroupedHelp(OneLineParser):
    """The parser whose help lists the commands, a line each, by what they are for."""

    def format_help(self) -> str:
        lines = ["Pretrain image encoders with all, some or no labels, and use them.", "", f"usage: {self.usage}"]
        for title, commands in GROUPS.items():
            lines += ["", f"{title}:"]
            for name, command in commands.items():
                lines.append(f"  {name:<10}{shorten(summarize(command), 68, placeholder=' ...')}")
        return "\n".join(
            [*lines, "", f"{self.prog} COMMAND --help shows what a command takes; --version the version", ""]
        )


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = GroupedHelp(prog=program_name(), usage=f"{program_name()} COMMAND ...")
    parser.add_argument("--version", action="version", version=describe_version())
    common = OneLineParser(add_help=False)
    group = common.add_argument_group("any command")
    group.add_argument("--json", metavar="FILE", help="write the result as JSON (-: standard output)")
    group.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")
    text = "your own losses, pools, encoders, recipes, benchmarks (docs/extending.md); may be given several times"
    group.add_argument("--plugin", action="append", default=[], metavar="FILE", help=text)
    add_commands(parser, COMMANDS, common)
    return parser


def describe_version() -> str:
    with suppress(PackageNotFoundError):
        return f"supancl {supancl.__version__} (torch {version('torch')})"
    return f"supancl {supancl.__version__} (torch is not installed)"


def with_default_command(words: list[str]) -> list[str]:
    """Name the subcommand that is meant where none is: `evaluate RUN` is `evaluate all RUN`."""
    subcommands = COMMANDS.get(words[0]) if words else None
    if isinstance(subcommands, dict) and "" in subcommands and words[1:2] not in ([name] for name in subcommands):
        return [words[0], DEFAULT, *words[1:]] if words[1:] and words[1] not in ("-h", "--help") else words
    return words


def parse(words: list[str]) -> argparse.Namespace:
    """The arguments of a command line; a word that is no command is refused with the nearest one."""
    for _ in words:  # flags of any command may stand before it
        count = {"--json": 2, "--plugin": 2, "--quiet": 1, "--debug": 1}.get(words[0], 0)
        words = [*words[count:], *words[:count]]
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        names = {**{name: name for name in COMMANDS}, **{name: f"evaluate {name}" for name in COMMANDS["evaluate"]}}  # type: ignore[union-attr]
        close = get_close_matches(words[0], names, n=1, cutoff=0.5)
        hint = f"did you mean {names[close[0]]!r}?" if close else f"known: {', '.join(COMMANDS)}"
        raise BadInput(f"unknown command {words[0]!r}; {hint} (see {program_name()} --help)")
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # type: ignore[import-not-found]

        argcomplete.autocomplete(parser)
    return parser.parse_args(with_default_command(words))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:  # show the commands, but with an error's exit code
        build_parser().print_help(sys.stderr)
        return BadInput.exit_code
    debug = "--debug" in words
    # readers name such images in remarks
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")
    try:
        args = parse(words)
        check_json(args.json, [str(path) for name in ("out", "static") if (path := getattr(args, name, None))])
        for file in args.plugin:
            load_plugin(file)
        with report_to(Terminal(make_console(args.quiet, args.json == "-"))):
            write_json(args.json, call(args))
        return 0
    except CheckFailed as error:
        write_json(args.json, error.result)
        return report_error(error, debug)
    except SupanclError as error:
        return report_error(error, debug)
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output closed it, like `| head`
        discard_output(sys.stdout)
        return 0
    except Exception as error:
        if message := explain(error):
            return report_error(BadInput(message), debug)
        return report_error(error, debug, "internal error, please report it with --debug: ")


def explain(error: Exception) -> str:
    """What a user can do about an error that is none of ours; empty if it is our fault."""
    if is_out_of_memory(error):
        return f"out of memory ({reason(error)}); lower --batch-size or data.memory_gb, or name smaller files"
    if isinstance(error, OSError) and error.filename is not None:  # a path that cannot be opened
        return f"{os.fsdecode(error.filename)}: {error.strerror}; check the path and its permissions"
    return describe_plugin_error(error)


def report_error(error: Exception, debug: bool, prefix: str = "") -> int:
    if debug:
        print(make_visible(traceback.format_exc(), keep="\n"), end="", file=sys.stderr)
    text = str(error) if isinstance(error, SupanclError) else " ".join(str(error).split())
    text = text.strip() or type(error).__name__
    print_error(prefix + (f"{type(error).__name__}: {text}" if prefix else text))
    return getattr(error, "exit_code", 1)


def print_error(text: str) -> None:
    if should_report_failure():
        line = f"supancl: {make_visible(text)}"
        if sys.stderr.isatty():
            line = wrap_line(line, os.get_terminal_size(sys.stderr.fileno()).columns)
        print(line, file=sys.stderr)


def check_json(target: str | None, others: Sequence[str] = ()) -> None:
    """Refuse a --json file that cannot be written, or is also another output, before the work starts."""
    if target in (None, "-") or not from_environment().is_rank0:  # of several ranks one writes
        return
    path = Path(str(target))
    if path.resolve() in [Path(other).resolve() for other in others]:
        raise BadInput(f"--json {target}: the command writes something else to it; name another file")
    Output(path, (path.suffix.lower(),), "--json", is_result).check()


def is_result(path: Path) -> bool:
    """Whether a file is empty or begins like a result, and is none of a run's own files, which have a digest."""
    if not path.is_file():  # such as /dev/stdout
        return True
    with suppress(OSError), open(path, "rb") as file:
        return "digest" not in read_json(path) and file.read(5) in (b"", b"{}\n", b'{\n  "')  # as `write_json` begins
    return False


def write_json(target: str | None, result: Any) -> None:
    """Write a result; an object such as a run has a method `summary` for it."""
    if target is None or not from_environment().is_rank0:  # of several ranks one writes
        return
    text = json.dumps(jsonable(result.summary() if hasattr(result, "summary") else result), indent=2)
    try:
        if target == "-":
            print(text, flush=True)
        else:
            make_folder(Path(target).parent)
            Path(target).write_text(text + "\n")
    except BrokenPipeError:
        raise
    except OSError as error:
        if target == "-":
            discard_output(sys.stdout)
        place = "standard output" if target == "-" else f"--json {target}"
        raise BadInput(f"{place}: cannot be written ({error.strerror}); name another file with --json") from None


def run_and_exit() -> None:
    """Run the command of `sys.argv` and end the process."""
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal lacks becomes a question mark, not an error
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    script = Path(sys.argv[0])
    if script.name == "__main__.py" and script.parent.name == "supancl":
        set_program_name("python -m supancl")
    if script.suffix == ".py" and not script.resolve().is_relative_to(Path(__file__).resolve().parents[1]):
        set_program_name(f"python {shlex.quote(sys.argv[0])}")  # the user's own script (docs/extending.md)
    code = main()
    if code > 128:  # a signal
        end_at_once(code)
    sys.exit(code)


def end_at_once(code: int) -> NoReturn:
    """End after a signal without waiting for threads: one may wait for a disk that hangs. All files are written."""
    atexit._run_exitfuncs()  # a progress bar shows the cursor again
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
