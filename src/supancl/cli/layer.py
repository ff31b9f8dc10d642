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
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

from supancl.config import FLAG, PYTHON
from supancl.errors import BadInput

Function = Callable[..., Any]
Commands = Mapping[str, "Function | Commands"]  # the function under the name "" needs no subcommand
PLAIN_TYPES = (bool, int, float, str, Path)


class Argument(NamedTuple):
    """One argument of a command, whose `default` is `inspect.Parameter.empty` if it must be given."""

    name: str
    hint: Any
    default: Any
    is_positional: bool
    text: str
    group: str


class _ForTypeCheckers(type):
    """Stands in an annotation for what is imported for type checkers alone, such as `torch.Tensor`."""

    def __getattr__(cls, name: str) -> Any:
        return cls

    def __getitem__(cls, item: Any) -> Any:
        return cls


class _Unknown(metaclass=_ForTypeCheckers):
    pass


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _Unknown)


def evaluated(annotation: Any, module: str) -> Any:
    """The annotation as an object; what only type checkers know is of no type that a flag could have."""
    return eval(annotation, {}, _Names(vars(sys.modules[module]))) if isinstance(annotation, str) else annotation


def parameter_texts(documented: Any) -> dict[str, str]:
    """Name -> text of the section "Parameters" of a docstring.

    >>> parameter_texts(parameter_texts)
    {}
    """
    body = (inspect.getdoc(documented) or "").partition("Parameters\n----------\n")[2]
    body = re.split(r"\n\w+\n---+\n", body)[0]
    entries = re.findall(r"^(\w+)[^\n]*\n((?:[ ]+[^\n]*\n?|\n)+)", body + "\n", flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def arguments_of(function: Function, texts: Mapping[str, str] = MappingProxyType({})) -> Iterator[Argument]:
    """The arguments of a command, those of its settings included; `texts` are of parameters that it does not explain."""
    texts, module = {**texts, **parameter_texts(function)}, inspect.unwrap(function).__module__
    for name, parameter in inspect.signature(function).parameters.items():
        hint = evaluated(parameter.annotation, module)
        if parameter.kind is parameter.VAR_KEYWORD:
            for settings in (*getattr(get_args(hint)[0], "__orig_bases__", ()), get_args(hint)[0]):
                yield from _settings(settings)
            continue
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if PYTHON in marks:
            continue
        is_several = parameter.kind is parameter.VAR_POSITIONAL
        is_positional = is_several or (parameter.kind is parameter.POSITIONAL_OR_KEYWORD and FLAG not in marks)
        yield Argument(
            name,
            list[hint] if is_several else hint,
            () if is_several else parameter.default,
            is_positional,
            texts.get(name, ""),
            "",
        )


def _settings(settings: Any) -> Iterator[Argument]:
    """The flags of one class of settings; those of its bases come from those."""
    if isinstance(settings, type) and "__annotations__" in vars(settings):
        texts, title = parameter_texts(settings), (inspect.getdoc(settings) or "").partition("\n")[0].rstrip(".")
        for name, annotation in settings.__annotations__.items():
            annotation = getattr(annotation, "__forward_arg__", annotation)
            hint = evaluated(annotation, settings.__module__)
            if name in texts:  # a class repeats the annotations of its bases
                yield Argument(name, hint, None, False, texts[name], title)


def flag_type(hint: Any) -> tuple[Any, str]:
    """The type of one value, and whether it is "one", "several" (a list) or "comma" (a tuple) of them."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        if get_origin(option) in (list, tuple, Sequence):
            return flag_type(get_args(option)[0])[0], "comma" if get_origin(option) is tuple else "several"
    plain = [option for option in options if option in PLAIN_TYPES or get_origin(option) is Literal]
    return (plain[0] if plain else str), "one"


def add_argument(parser: Any, argument: Argument) -> None:
    """Add one argument to an argparse parser, or to a group of one."""
    kind, number = flag_type(argument.hint)
    is_required, name = argument.default is inspect.Parameter.empty, argument.name
    shown = argument.default not in (None, False, (), "", inspect.Parameter.empty)
    default = ",".join(map(str, argument.default)) if isinstance(argument.default, tuple) else argument.default
    options: dict[str, Any] = {"help": (argument.text + f" (default {default})" * shown).strip().replace("%", "%%")}
    metavar = METAVARS.get(name, {int: "N", float: "X", Path: "PATH"}.get(kind, "X"))
    if kind is bool:
        parser.add_argument(f"--{_spelled(name)}", action="store_true", default=argparse.SUPPRESS, **options)
        return
    if get_origin(kind) is Literal:
        options["choices"], metavar = get_args(kind), None
    elif number == "comma":
        options["type"] = _comma_separated(kind)
    else:
        options["type"] = _named(kind)
    options["metavar"] = metavar
    if argument.is_positional:
        nargs = {"several": "+" if is_required else "*"}.get(number, None if is_required else "?")
        parser.add_argument(name, nargs=nargs, default=argparse.SUPPRESS, **options)
        return
    options |= {"action": "append"} if number == "several" else {}
    parser.add_argument(f"--{_spelled(name)}", default=argparse.SUPPRESS, dest=name, required=is_required, **options)


METAVARS = {
    "data": "SOURCE", "out": "PATH", "set": "FIELD=VALUE", "recipe": "RECIPE", "recipes": "RECIPE", "run": "RUN",
    "runs": "RUN", "encoder": "ENCODER", "encoders": "ENCODER", "init": "ENCODER", "extend": "RUN", "columns": "ROLES",
}  # fmt: skip


def _spelled(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _named(kind: type) -> Callable[[str], Any]:
    """The type under a name that a message can show."""

    def convert(text: str) -> Any:
        return kind(text)

    convert.__name__ = {int: "whole number", float: "number"}.get(kind, "text")
    return convert


def _comma_separated(kind: type) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        return tuple(kind(word.strip()) for word in text.split(",") if word.strip())

    convert.__name__ = {int: "whole numbers a,b", float: "numbers a,b"}.get(kind, "names a,b")
    return convert


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
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + f"; did you mean {hint[0]}?" * bool(hint))
        return known, unknown

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{' '.join(message.split())} (see {self.prog} --help)")


def add_commands(
    parser: argparse.ArgumentParser, commands: Commands, common: argparse.ArgumentParser, shared: Mapping[str, str] = {}
) -> None:
    """Add each command below a parser, as a subparser whose `function` is the public function."""
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND", prog=parser.prog, parser_class=OneLineParser)
    for name, command in commands.items():
        if not isinstance(command, Mapping):
            add_function(subparsers, name or DEFAULT, command, common, shared)
            continue
        default: Any = command.get("")
        summary = (inspect.getdoc(default) or f"{', '.join(command)}").partition("\n")[0].rstrip(".")
        group = subparsers.add_parser(name, help=summary, description=summary)
        add_commands(group, command, common, parameter_texts(default))


DEFAULT = "all"  # the subcommand that is meant where none is named


def add_function(
    subparsers: Any, name: str, function: Function, common: argparse.ArgumentParser, shared: Mapping[str, str]
) -> None:
    """Add the parser of one command."""
    text = inspect.getdoc(function) or ""
    description = re.split(r"\n\w+\n---+\n", text)[0].strip()
    examples = [line.strip("$ ") for line in text.splitlines() if line.strip().startswith("$ supancl")]
    child = subparsers.add_parser(
        name,
        help=description.partition("\n")[0].rstrip("."),
        description=description,
        epilog="\n".join(["examples:", *(f"  {line}" for line in examples)]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    groups: dict[str, Any] = {"": child}
    for argument in arguments_of(function, shared):
        if argument.group not in groups:
            groups[argument.group] = child.add_argument_group(argument.group)
        add_argument(groups[argument.group], argument)
    child.set_defaults(function=function)


def call(args: argparse.Namespace) -> Any:
    """Call the function of a command with what was given; all else has the function's defaults."""
    given, positional = dict(vars(args)), []
    for name, parameter in inspect.signature(args.function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional = given.pop(name, [])
    names = {argument.name for argument in arguments_of(args.function)}
    return args.function(*positional, **{name: value for name, value in given.items() if name in names})
