"""The command line: `supancl COMMAND`. Every command takes --json FILE, --quiet and --debug."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from io import TextIOWrapper
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn

from supancl.cli import commands
from supancl.cli.console import Terminal, make_console, print_error
from supancl.cli.flags import OneLineParser, add_command
from supancl.distributed import should_print
from supancl.errors import (
    BadInput,
    CheckFailed,
    SupanclError,
    is_out_of_memory,
    make_visible,
    program_name,
    set_program_name,
)
from supancl.files import jsonable, read_json, reason
from supancl.recipes.plugin_files import load_plugin
from supancl.recipes.plugins import describe_plugin_error
from supancl.reporter import report_to
from supancl.reports.terminal import discard_output
from supancl.version import __version__


class CommandLine(OneLineParser):
    """The parser of `supancl`; it takes common flags also before the command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(move_common_flags(words), namespace)


SIGNAL_CODES = 128  # exit codes above are those of signals
COMMON_FLAGS = {"--plugin": 1, "--json": 1, "--quiet": 0, "--debug": 0}  # -> number of values


def move_common_flags(words: list[str]) -> list[str]:
    """Move common flags from before the command to the end, where its parser accepts them.

    >>> move_common_flags(["--plugin", "mine.py", "--quiet", "recipes", "mine"])
    ['recipes', 'mine', '--plugin', 'mine.py', '--quiet']
    """
    count = 0
    while count < len(words) and (flag := words[count].partition("=")[0]) in COMMON_FLAGS:
        count += 1 + (0 if "=" in words[count] else COMMON_FLAGS[flag])
    return words[count:] + words[:count] if count < len(words) else words


def torch_version() -> str:
    """The version of torch without importing it; only its version.py names the build (+cpu, +cu132)."""
    spec = find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec is not None and spec.origin else None
    match = re.search(r"__version__ = '([^']+)'", file.read_text()) if file is not None and file.exists() else None
    try:
        return match[1] if match else version("torch")
    except PackageNotFoundError:  # `supancl doctor` says so
        return "not installed"


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command; the module of a command is imported when its parser is used."""
    contents = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<10} {text}" for name, text in group.items())])
        for title, group in commands.GROUPS.items()
    )
    parser = CommandLine(
        prog=program_name(),
        usage=f"{program_name()} COMMAND ...",
        description=f"Pretrain image encoders with all, some or no labels, and evaluate them.\n\n{contents}",
        epilog=f"{program_name()} COMMAND --help lists the flags of a command",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"supancl {__version__} (torch {torch_version()})")
    subparsers = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        prog=program_name(),
        help=argparse.SUPPRESS,
        parser_class=OneLineParser,
    )
    for name, text in commands.COMMANDS.items():
        module = f"{name}_" if iskeyword(name) else name
        add_command(subparsers, name, module, is_group=name in commands.NESTED, description=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    if not words:  # show the commands, but with an error's exit code
        parser.print_help(sys.stderr)
        return BadInput.exit_code
    args = parser.parse_args(words)
    console = make_console(args.quiet, args.json == "-")
    # readers name such images in remarks
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit")
    try:
        check_json(args.json, [path for name in ("out", "static") if (path := getattr(args, name, None))])
        for file in args.plugin:
            load_plugin(file)
        try:
            with report_to(Terminal(console)):
                result = args.run(args, console)
        except CheckFailed as error:
            write_json(args.json, error.result)
            raise
        write_json(args.json, result)
        return 0
    except SupanclError as error:
        return report_error(error, args.debug)
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output closed it, like `| head`
        discard_output(sys.stdout)
        return 0
    except Exception as error:
        if is_out_of_memory(error):
            message = f"out of memory ({reason(error)}); lower --batch-size or data.memory_gb, or name smaller files"
            return report_error(BadInput(message), args.debug)
        if isinstance(error, OSError) and error.filename is not None:  # a path that cannot be opened
            message = f"{os.fsdecode(error.filename)}: {error.strerror}; check the path and its permissions"
            return report_error(BadInput(message), args.debug)
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # pathlib's, until Python 3.13
            return report_error(BadInput(f"{error}: the link leads to itself; check the path"), args.debug)
        if fault := describe_plugin_error(error):
            return report_error(BadInput(fault), args.debug)
        return report_error(error, args.debug, "internal error, please report it with --debug: ")


def report_error(error: Exception, debug: bool, prefix: str = "") -> int:
    if debug:
        print(make_visible(traceback.format_exc(), keep="\n"), end="", file=sys.stderr)
    text = str(error) if isinstance(error, SupanclError) else " ".join(str(error).split())
    text = text.strip() or type(error).__name__
    print_error(prefix + (f"{type(error).__name__}: {text}" if prefix else text))
    return getattr(error, "exit_code", 1)


def check_json(target: str | None, others: Sequence[str] = ()) -> None:
    """Refuse a --json file that cannot be written, or is also another output, before the work starts."""
    if target in (None, "-") or not should_print():  # of several ranks one writes
        return
    path = Path(str(target))
    if any(path.resolve() == Path(other).resolve() for other in others):
        reason = "the command writes something else to it"
    elif path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        reason = "Permission denied"
    elif path.is_file() and not _may_be_a_result(path):
        reason = "it exists, and is no result in JSON"
    else:
        return
    raise BadInput(f"--json {target}: cannot be written ({reason}); name another file, or - for standard output")


def _may_be_a_result(path: Path) -> bool:
    """Whether a file is empty or begins like a result, and is none of a run's own files, which have a digest."""
    if "digest" in read_json(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(5) in (b"", b"{}\n", b'{\n  "')  # as `write_json` begins
    except OSError:  # it may be written but not read, so nobody knows what would be lost
        return False


def write_json(target: str | None, result: dict[str, Any]) -> None:
    if target is None or not should_print():  # of several ranks one writes
        return
    text = json.dumps(jsonable(result), indent=2)
    if target == "-":
        try:
            print(text, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            discard_output(sys.stdout)
            raise BadInput(f"standard output cannot be written ({error.strerror}); name a file: --json FILE") from None
        return
    try:
        Path(target).write_text(text + "\n")
    except OSError as error:
        raise BadInput(
            f"--json {target}: cannot be written ({error.strerror}); name another file, or - for standard output"
        ) from None


def run_and_exit() -> None:
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal lacks becomes a question mark, not an error
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    script = Path(sys.argv[0])
    if script.name == "__main__.py" and script.parent.name == "supancl":
        set_program_name("python -m supancl")
    if script.suffix == ".py" and not script.resolve().is_relative_to(Path(__file__).resolve().parents[1]):
        set_program_name(f"python {shlex.quote(sys.argv[0])}")  # the user's own script (docs/extending.md)
    code = main()
    if code > SIGNAL_CODES:
        end_at_once(code)
    sys.exit(code)


def end_at_once(code: int) -> NoReturn:
    """End after a signal without waiting for threads: one may wait for a disk that hangs. All files are written."""
    atexit._run_exitfuncs()  # a progress bar shows the cursor again
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
