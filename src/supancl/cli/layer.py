"""A command is a public function: its parameters are the arguments, its docstring is the help.

Parameters before the `*` are positional and others are flags; `Annotated[T, FLAG]` makes a flag of the former, and
`Annotated[T, PYTHON]` leaves a parameter to callers in Python. `**settings: Unpack[TypedDict]` stands for a group of
flags. Texts come from the section "Parameters" of a docstring, examples from its lines that begin with `$ supancl`.
Nothing here imports torch.
"""

from __future__ import annotations

import argparse
import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from textwrap import fill
from types import GenericAlias, MappingProxyType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

from supancl.config import FLAG, PYTHON
from supancl.errors import BadInput

Function = Callable[..., Any]
Commands = Mapping[str, "Function | Commands"]  # the function under the name "" needs no subcommand
DEFAULT = "all"  # how that function is called where a subcommand must be named
REQUIRED = inspect.Parameter.empty
SECTION = re.compile(r"\n\w+\n---+\n")  # the title of a section of a docstring
METAVARS = {"data": "SOURCE", "set": "FIELD=VALUE", "init": "ENCODER", "extend": "RUN", "columns": "ROLES"}
TYPE_NAMES = {int: ("N", "whole number"), float: ("X", "number"), Path: ("PATH", "path"), str: ("NAME", "text")}


class Argument(NamedTuple):
    """One argument of a command."""

    name: str
    hint: Any
    default: Any
    is_positional: bool
    text: str
    group: str = ""


class _Names(dict[str, Any]):
    """The names of a module; what only type checkers know, such as `torch`, may be anything."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, Any)


def evaluated(annotation: Any, module: str) -> Any:
    """The annotation as an object."""
    return eval(annotation, {}, _Names(vars(sys.modules[module]))) if isinstance(annotation, str) else annotation


def parameter_texts(documented: Any) -> dict[str, str]:
    """Name -> text of the section "Parameters" of a docstring."""
    body = (inspect.getdoc(documented) or "").partition("Parameters\n----------\n")[2]
    entries = re.findall(r"^(\w+)[^\n]*\n((?:[ ]+[^\n]*\n?|\n)+)", SECTION.split(body)[0] + "\n", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def arguments_of(function: Function, texts: Mapping[str, str] = MappingProxyType({})) -> Iterator[Argument]:
    """The arguments of a command and of its settings; `texts` are of parameters that it does not explain."""
    texts, module = {**texts, **parameter_texts(function)}, inspect.unwrap(function).__module__
    for name, parameter in inspect.signature(function).parameters.items():
        hint, text = evaluated(parameter.annotation, module), texts.get(name, "")
        if parameter.kind is parameter.VAR_KEYWORD:
            settings = get_args(hint)[0]
            for part in (*getattr(settings, "__orig_bases__", ()), settings):
                yield from _settings(part)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            yield Argument(name, GenericAlias(list, (hint,)), (), True, text)
        elif PYTHON not in (marks := get_args(hint)[1:] if get_origin(hint) is Annotated else ()):
            is_positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and FLAG not in marks
            yield Argument(name, hint, parameter.default, is_positional, text)


def _settings(settings: Any) -> Iterator[Argument]:
    """The flags of one class of settings: those that its own docstring explains."""
    texts, title = parameter_texts(settings), (inspect.getdoc(settings) or "").partition("\n")[0].rstrip(".")
    for name, text in texts.items():
        annotation = settings.__annotations__[name]
        hint = evaluated(getattr(annotation, "__forward_arg__", annotation), settings.__module__)
        yield Argument(name, hint, None, False, text, title)


def flag_type(hint: Any) -> tuple[Any, str]:
    """The type of one value, and whether there is "one", or "several" (a list) or "comma" (a tuple) of them."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if get_origin(option) in (list, tuple):
            return flag_type(get_args(option)[0])[0], "comma" if get_origin(option) is tuple else "several"
    plain = [option for option in options if option is bool or option in TYPE_NAMES or get_origin(option) is Literal]
    return (plain[0] if plain else str), "one"


def converter(kind: Any, number: str) -> Callable[[str], Any]:
    """From a word of the command line to a value; its name is for messages."""

    def convert(text: str) -> Any:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return tuple(map(kind, words)) if number == "comma" else kind(text)

    convert.__name__ = TYPE_NAMES[kind][1] + "s a,b" * (number == "comma")
    return convert


def add_argument(parser: Any, argument: Argument) -> None:
    """Add one argument to an argparse parser, or to a group of one."""
    (kind, number), name, default = flag_type(argument.hint), argument.name, argument.default
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    has_default = default is not REQUIRED and default not in (None, False, (), "")
    text = (argument.text + f" (default {shown})" * has_default).strip().replace("%", "%%")
    options: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS}
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        parser.add_argument(flag, action="store_true", **options)
        return
    if get_origin(kind) is Literal:
        options["choices"] = get_args(kind)
    else:
        is_named = argument.is_positional or kind is str
        title = name.removesuffix("s").upper() if is_named else TYPE_NAMES[kind][0]
        options |= {"type": converter(kind, number), "metavar": METAVARS.get(name, title)}
    if argument.is_positional:
        several = {"several": "+" if default is REQUIRED else "*"}
        parser.add_argument(name, nargs=several.get(number, None if default is REQUIRED else "?"), **options)
        return
    action = "append" if number == "several" else "store"
    parser.add_argument(flag, dest=name, action=action, required=default is REQUIRED, **options)


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the nearest flag or command."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown flags here, not in the parent parser, so that the error names this command's --help."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [option for action in self._actions for option in action.option_strings]
            close = get_close_matches(unknown[0].partition("=")[0], flags, n=1, cutoff=0.7)
            is_path = "--data" in flags and not unknown[0].startswith("-") and Path(unknown[0]).exists()
            hint = [f"--data {unknown[0]}"] if is_path else close or ["--set FIELD=VALUE"] * ("--set" in flags)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + "".join(f"; did you mean {h}?" for h in hint))
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{' '.join(message.split())} (see {self.prog} --help)")


def summarize(command: Function | Commands) -> str:
    """The first line of a command's docstring; of a group without one of its own, its subcommands."""
    function: Any = command.get("") if isinstance(command, Mapping) else command
    text = inspect.getdoc(function) or "" if function else f"subcommands: {', '.join(command)}"  # type: ignore[arg-type]
    return text.partition("\n")[0].rstrip(".")


def add_commands(
    parser: argparse.ArgumentParser, commands: Commands, common: OneLineParser, shared: Mapping[str, str] = {}
) -> None:
    """Add each command below a parser; `shared` are texts of parameters that several of them have."""
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", prog=parser.prog, parser_class=OneLineParser)
    for name, command in commands.items():
        if isinstance(command, Mapping):
            group = subparsers.add_parser(name, help=summarize(command), description=summarize(command))
            add_commands(group, command, common, parameter_texts(command.get("")))
            continue
        text = inspect.getdoc(command) or ""
        description = SECTION.split(text)[0].strip()
        examples = [f"  {line.strip('$ ')}" for line in text.splitlines() if line.strip().startswith("$ supancl")]
        child = subparsers.add_parser(
            name or DEFAULT,
            help=summarize(command),
            description="\n\n".join(fill(" ".join(part.split()), 79) for part in description.split("\n\n")),
            epilog="\n".join(["examples:", *examples]) if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[common],
            prog=f"{parser.prog} {name}".strip(),
        )
        groups: dict[str, Any] = {"": child}
        for argument in arguments_of(command, shared):
            if argument.group not in groups:
                groups[argument.group] = child.add_argument_group(argument.group)
            add_argument(groups[argument.group], argument)
        child.set_defaults(function=command)


def call(args: argparse.Namespace) -> Any:
    """Call the function of a command with what was given; all else has the function's defaults."""
    arguments, given = list(arguments_of(args.function)), vars(args)
    several = [name for name, p in inspect.signature(args.function).parameters.items() if p.kind is p.VAR_POSITIONAL]
    named = {a.name: given[a.name] for a in arguments if a.name in given and a.name not in several}
    if not several:
        return args.function(**named)
    before = [named.pop(a.name) for a in arguments if a.is_positional and a.name in named]  # such as a table's name
    return args.function(*before, *given.get(several[0], ()), **named)
