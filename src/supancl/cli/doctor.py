"""`supancl doctor`. Nothing here needs torch to be importable: that is one of the things to find out."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from rich.console import Console
from rich.text import Text

from supancl.doctor import installation, machine
from supancl.doctor.findings import Check, Finding, as_json, run_checks, worst_status
from supancl.errors import CheckFailed, make_visible, plural

CHECKS = (
    Check("Python", installation.check_python),
    Check("supancl", installation.check_supancl),
    Check("packages", installation.check_packages),
    Check("extras", installation.check_extras),
    Check("variables", installation.check_environment),
    Check("GPU", machine.check_gpu, needs_torch=True),
    Check("precision", machine.check_precision, needs_torch=True),
    Check("compiler", machine.check_compiler, needs_torch=True),
    Check("cores", machine.check_cores, needs_torch=True),
    Check("memory", machine.check_memory, needs_torch=True),
    Check("shared mem.", machine.check_shared_memory),
    Check("this folder", machine.check_run_folder),
    Check("cache", machine.check_cache_folder),
    Check("terminal", machine.check_terminal),
)
STYLES = {"ok": "green", "note": "yellow", "problem": "red"}
MAX_WIDTH = 100
INDENT = 21  # of the third column


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Print one line per check, and what to change; a problem is exit code 1."""
    findings = run_checks(CHECKS)
    width = min(console.width, MAX_WIDTH) if console.is_terminal else 80
    for finding in findings:
        print_finding(finding, width, console)
    result: dict[str, Any] = {"status": worst_status(findings), "checks": list(as_json(findings))}
    problems, notes = (sum(finding.status == name for finding in findings) for name in ("problem", "note"))
    if problems:
        names = ", ".join(dict.fromkeys(finding.name for finding in findings if finding.status == "problem"))
        message = f"{plural(problems, 'problem')} that training cannot do without: {names}; change what the list says"
        raise CheckFailed(message, result)
    console.print(f"training works; {plural(notes, 'note')} on what could be better" if notes else "everything is fine")
    return result


def print_finding(finding: Finding, width: int, console: Console) -> None:
    """`ok  name  text`, and below it what to change, in aligned columns."""
    head = Text(f"{finding.status:8}{finding.name:{INDENT - 8}}")
    head.stylize(STYLES[finding.status], 0, 8)
    lines = fill(finding.text, width)
    lines += [f"{'->' if number == 0 else '  '} {line}" for number, line in enumerate(fill(finding.advice, width - 3))]
    for number, line in enumerate(lines):
        console.print((head if number == 0 else Text(" " * INDENT)) + line)


def fill(text: str, width: int) -> list[str]:
    return textwrap.wrap(make_visible(text), max(width - INDENT, 20), break_long_words=False, break_on_hyphens=False)
