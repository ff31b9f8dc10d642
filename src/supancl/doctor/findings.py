"""What a check of the installation says, and how checks are run: none can stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from supancl.files import reason
from supancl.reporter import track

Status = Literal["ok", "note", "problem"]
STATUSES: tuple[Status, ...] = ("ok", "note", "problem")  # from good to bad


@dataclass(frozen=True)
class Finding:
    """One line of the list. `note`: it works, and could be better. `problem`: training is impossible."""

    name: str
    status: Status
    text: str
    advice: str = ""  # what to change
    values: Mapping[str, Any] = field(default_factory=dict)  # figures for --json


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[], Iterable[Finding]]
    needs_torch: bool = False


def run_checks(checks: Sequence[Check]) -> list[Finding]:
    """All findings, in the order of the checks. A check that fails becomes a finding itself."""
    torch_failure = why_no_torch()
    return [finding for check in track(checks, "checking") for finding in run_check(check, torch_failure)]


def run_check(check: Check, torch_failure: str = "") -> list[Finding]:
    if check.needs_torch and torch_failure:
        return [Finding(check.name, "note", "not checked, because torch cannot be imported")]
    findings: list[Finding] = []
    try:
        findings.extend(check.run())
    except Exception as error:
        text = f"could not be checked ({type(error).__name__}: {reason(error)})"
        findings.append(Finding(check.name, "note", text, "please report it, with what this command prints"))
    return findings


def why_no_torch() -> str:
    """Why torch cannot be imported; empty if it can."""
    try:
        import torch  # noqa: F401
    except Exception as error:  # a library that it needs may be missing: OSError
        return reason(error)
    return ""


def worst_status(findings: Iterable[Finding]) -> Status:
    return max((finding.status for finding in findings), key=STATUSES.index, default="ok")


def as_json(findings: Iterable[Finding]) -> Iterator[dict[str, Any]]:
    for finding in findings:
        row = {"name": finding.name, "status": finding.status, "text": finding.text, "advice": finding.advice}
        yield {**row, **({"values": dict(finding.values)} if finding.values else {})}
