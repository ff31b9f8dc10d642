"""`supancl completion bash|zsh|fish`: a script with every command, flag and recipe; pressing TAB starts no Python."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from supancl.recipes import RECIPES


@dataclass
class Completed:
    """A command as it is typed, and what may follow: subcommands or recipes, and flags with their help."""

    words: str  # 'evaluate knn'; empty for supancl itself
    names: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    takes_files: bool = False  # a recipe may be a file
    values: dict[str, list[str]] = field(default_factory=dict)  # of a flag that takes one; empty: a file or a number

    @property
    def place(self) -> str:
        """How the scripts name it: each of its words after a space."""
        return "".join(f" {word}" for word in self.words.split())


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.cli.dispatch import build_parser

    script = SCRIPTS[args.shell](list(walk(build_parser())))
    console.print(script, end="")
    return {"shell": args.shell, "script": script}


def walk(parser: argparse.ArgumentParser, words: str = "") -> Iterator[Completed]:
    """Every command below this parser, the parser itself first."""
    fill = getattr(parser, "fill", None)
    if fill is not None:
        fill(parser)
        parser.fill = None  # type: ignore[attr-defined]
    completed, below = Completed(words), {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            completed.names |= {name: str(subparser.description or "") for name, subparser in below.items()}
        elif not action.option_strings:
            recipes = RECIPES if action.metavar == "RECIPE" else ()
            completed.takes_files = completed.takes_files or bool(recipes)
            completed.names |= dict.fromkeys([*map(str, action.choices or ()), *recipes], "")
        for flag in action.option_strings:
            completed.flags[flag] = str(action.help or "") if action.help != argparse.SUPPRESS else ""
            if action.nargs != 0:
                completed.values[flag] = list(map(str, action.choices or ()))
    yield completed
    for name, subparser in below.items():
        yield from walk(subparser, f"{words} {name}".strip())


def _branches(commands: list[Completed]) -> str:
    """The cases that both bash and zsh need: what names a command, values of flags, and what may follow a command."""
    named = "|".join(f'"{completed.place}"' for completed in commands[1:])
    lines = ["    for word in $before; do", '        case "$place $word" in', f"            {named})"]
    lines += ['                place="$place $word" ;;', "        esac", "    done", '    case "$place $previous" in']
    for completed in commands:
        place = completed.place
        free = "|".join(f'"{place} {flag}"' for flag, choices in completed.values.items() if not choices)
        lines += [f"        {free}) is_value=yes ;;"] if free else []
        for flag, choices in completed.values.items():
            lines += [f'        "{place} {flag}") is_value=yes; names={_quote(choices)} ;;'] if choices else []
    lines += ["    esac", '    if [[ -z "$is_value" ]]; then case "$place" in']
    for completed in commands:
        place = completed.place
        lines.append(f'        "{place}") names={_quote(completed.names)}; flags={_quote(completed.flags)} ;;')
    return "\n".join([*lines, "    esac; fi", '    if [[ "$current" == -* ]]; then names="$flags"; fi'])


def _quote(words: Any) -> str:
    return shlex.quote(" ".join(words))


def bash_script(commands: list[Completed]) -> str:
    """For `source <(supancl completion bash)`."""
    return f"""# completion of supancl for bash
_supancl() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}"
    local before="${{COMP_WORDS[*]:1:COMP_CWORD - 1}}" place="" word="" is_value="" names="" flags=""
{_branches(commands)}
    COMPREPLY=($(compgen -W "$names" -- "$current"))
}}
complete -o default -F _supancl supancl
"""


def zsh_script(commands: list[Completed]) -> str:
    """For `source <(supancl completion zsh)`, after compinit."""
    return f"""#compdef supancl
_supancl() {{
    local current="${{words[CURRENT]}}" previous="${{words[CURRENT - 1]}}"
    local place="" word="" is_value="" names="" flags=""
    local -a before=("${{(@)words[2,CURRENT - 1]}}")
{_branches(commands)}
    compadd -- ${{=names}} || _files
}}
compdef _supancl supancl
"""


def fish_script(commands: list[Completed]) -> str:
    """For `supancl completion fish | source`."""
    lines = ["# completion of supancl for fish"]
    for completed in commands:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in completed.words.split())
        start = f"complete -c supancl -n {_fish_quote(seen or '__fish_use_subcommand')}"
        below = " ".join(completed.names)
        condition = f"{seen}; and not __fish_seen_subcommand_from {below}" if seen and below else seen
        no_files = "" if completed.takes_files else " -f"
        named = f"complete -c supancl -n {_fish_quote(condition or '__fish_use_subcommand')}"
        lines += [
            f"{named}{no_files} -a {_fish_quote(name)} -d {_fish_quote(text)}" for name, text in completed.names.items()
        ]
        for flag, text in completed.flags.items():
            option = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            values = f" -r -f -a {_fish_quote(' '.join(completed.values[flag]))}" if completed.values.get(flag) else ""
            values = values or (" -r" if flag in completed.values else "")
            lines.append(f"{start} {option}{values} -d {_fish_quote(text.partition(' (')[0])}")
    return "\n".join(lines) + "\n"


def _fish_quote(text: str) -> str:
    """A single-quoted string of fish, in which a backslash escapes only a quote and itself."""
    text = text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


SCRIPTS = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
