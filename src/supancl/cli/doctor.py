"""`supancl doctor`: versions, device and disk. It works without torch, which may be what is broken."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from supancl.data.store.cache import cache_root
from supancl.errors import CheckFailed, make_visible, plural
from supancl.files import reason, why_unwritable
from supancl.version import __version__

if TYPE_CHECKING:
    from packaging.requirements import Requirement

IMPORTED = ("torch", "torchvision", "timm")  # of different releases fail only when they are imported
MIN_RUN_BYTES = 100e6  # a run of a small encoder with two checkpoints
LITTLE_BYTES = 5e9  # of memory or disk: less is soon used up
Status = Literal["ok", "note", "problem"]
STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "problem": "red"}  # from good to bad
INDENT = 21  # of the third column


class Finding(NamedTuple):
    """One line of the list. `note`: it works, and could be better. `problem`: training is impossible."""

    name: str
    status: Status
    text: str
    advice: str = ""  # what to change


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Print one line per check, and what to change; a problem is exit code 1."""
    findings = [finding for name, check in CHECKS.items() for finding in run_check(name, check)]
    width = min(console.width, 100) if console.is_terminal else 80
    for finding in findings:
        print_finding(finding, width, console)
    worst = max((finding.status for finding in findings), key=list(STYLES).index)
    result: dict[str, Any] = {"status": worst, "checks": [finding._asdict() for finding in findings]}
    if worst == "problem":
        names = ", ".join(finding.name for finding in findings if finding.status == "problem")
        raise CheckFailed(f"training cannot do without: {names}; change what the list says", result)
    notes = sum(finding.status == "note" for finding in findings)
    console.print(f"training works; {plural(notes, 'note')} on what could be better" if notes else "everything is fine")
    return result


def run_check(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """What a check finds; one that fails becomes a finding itself."""
    try:
        return list(check())
    except Exception as error:
        return [Finding(name, "note", f"could not be checked ({type(error).__name__}: {reason(error)})")]


def print_finding(finding: Finding, width: int, console: Console) -> None:
    """`ok  name  text`, and below it what to change, in aligned columns."""
    head = Text(f"{finding.status:8}{finding.name:{INDENT - 8}}")
    head.stylize(STYLES[finding.status], 0, 8)
    advice = f"-> {finding.advice}" if finding.advice else ""
    wrap = textwrap.TextWrapper(width - INDENT, break_long_words=False, break_on_hyphens=False).wrap
    lines = [line for text in (finding.text, advice) for line in wrap(make_visible(text))]
    for number, line in enumerate(lines):
        console.print((head if number == 0 else Text(" " * INDENT)) + line)


# --- versions ---------------------------------------------------------------------------------------------------------


def check_python() -> Iterator[Finding]:
    text = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    is_tested = platform.python_version_tuple()[:2] in (("3", "11"), ("3", "12")) and platform.system() == "Linux"
    yield Finding("Python", "ok" if is_tested else "note", text, "" if is_tested else "tested are 3.11, 3.12 and Linux")


def check_supancl() -> Iterator[Finding]:
    text = f"{__version__} in {Path(__file__).resolve().parents[1]}"
    try:
        is_known = version("supancl") == __version__
    except PackageNotFoundError:
        is_known = False
    advice = "" if is_known else "pip does not know this copy: pip install -e . in its sources"
    yield Finding("supancl", "ok" if is_known else "note", text, advice)


def check_packages() -> Iterator[Finding]:
    """The packages that are needed, in one finding if all of them are fine, and which extras are installed."""
    from packaging.requirements import Requirement  # matplotlib needs it too

    required = list(map(Requirement, requires("supancl") or ()))
    needed = [each for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = {each.name: why for each in needed if (why := why_unusable(each))}
    good = [f"{each.name} {version(each.name)}" for each in needed if each.name not in wrong]
    yield Finding("packages", "ok", ", ".join(good) or "none is as it should be")
    for name, why in wrong.items():
        yield Finding(
            name, "problem", why, f"pip install --force-reinstall -U {name}; torch and torchvision must agree"
        )
    extras: dict[str, bool] = {}
    for each in required:
        for extra in re.findall(r"extra == ['\"](\w+)", str(each.marker)):
            extras[extra] = extras.get(extra, True) and not why_unusable(each)
    missing = [extra for extra, is_there in extras.items() if not is_there]
    text = f"installed: {', '.join(extra for extra, is_there in extras.items() if is_there) or 'none'}"
    text += f"; not installed: {', '.join(missing)}" if missing else ""
    yield Finding("extras", "ok", text, "if you need one of them: pip install 'supancl[NAME]'" if missing else "")


def why_unusable(requirement: Requirement) -> str:
    """Why a required package cannot be used; empty if it can."""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return "is not installed"
    if not requirement.specifier.contains(installed, prereleases=True):
        return f"{installed} is installed, {requirement.specifier} is needed"
    try:
        import_module(requirement.name) if requirement.name in IMPORTED else None
    except Exception as error:  # mismatched binaries raise OSError, RuntimeError or AttributeError
        return f"{installed} cannot be imported ({reason(error)})"
    return ""


# --- device -----------------------------------------------------------------------------------------------------------


def check_gpu() -> Iterator[Finding]:
    import torch

    build = "CPU" if torch.version.hip is None else "ROCm"
    build = f"{build if torch.version.cuda is None else f'CUDA {torch.version.cuda}'} build"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            yield check_one_gpu(index, build)
    elif driver := find_driver():
        advice = "unset CUDA_VISIBLE_DEVICES, install torch with CUDA, or update the driver"
        yield Finding("GPU", "note", f"there is one (driver {driver}), but torch ({build}) cannot use it", advice)
    else:
        yield Finding("GPU", "ok", f"none (torch is a {build}): training uses the CPU")


def find_driver(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's driver on this machine, whatever torch thinks; empty if there is none."""
    if not proc.exists():
        return ""
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", proc.read_text())
    return match[1] if match else "unknown"


def check_one_gpu(index: int, build: str) -> Finding:
    import torch

    from supancl.core.precision import auto_precision

    device = torch.device("cuda", index)
    free, total = torch.cuda.mem_get_info(device)
    text = f"{torch.cuda.get_device_name(device)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free, {build}, "
    text += f"trains in {auto_precision(device)}"
    try:
        torch.ones(8, device=device).sum().item()
    except Exception as error:  # a GPU that is too old or too new for this build, or one out of order
        advice = "use a build of torch for this GPU, or --device cpu"
        return Finding("GPU", "problem", f"{text}: it cannot compute ({reason(error)})", advice)
    if free < total / 2:
        return Finding("GPU", "note", text, "another process holds the rest; nvidia-smi names it")
    return Finding("GPU", "ok", text)


def check_cores() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    text = f"{plural(cores, 'core')}, torch uses {plural(threads, 'thread')}"
    advice = "" if threads == cores else f"on a CPU one thread per core is fastest: export OMP_NUM_THREADS={cores}"
    yield Finding("cores", "note" if advice else "ok", text, advice)


def check_memory() -> Iterator[Finding]:
    import torch

    from supancl.training.cost import available_memory, in_gigabytes

    free = available_memory(torch.device("cpu"))
    is_little = free is not None and free < LITTLE_BYTES
    advice = "close other programs, or train with smaller batches (--batch-size)" if is_little else ""
    text = "how much is free is not known on this system" if free is None else f"{in_gigabytes(free)} free"
    yield Finding("memory", "note" if is_little else "ok", text, advice)


# --- disk -------------------------------------------------------------------------------------------------------------


def check_disk(name: str, folder: Path, if_unusable: Status, way_out: str) -> Iterator[Finding]:
    """Free space of a folder, or of the folder in which it would be made."""
    if why := why_unwritable(folder):
        yield Finding(name, if_unusable, f"{folder} cannot be written ({why})", way_out)
        return
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    status: Status = if_unusable if free < MIN_RUN_BYTES else "note" if free < LITTLE_BYTES else "ok"
    yield Finding(
        name, status, f"{free / 1e9:,.1f} GB free in {folder}", "" if status == "ok" else f"make room, or {way_out}"
    )


def check_run_folder() -> Iterator[Finding]:
    return check_disk("this folder", Path.cwd(), "problem", "go to another folder, or name one with --out")


def check_cache_folder() -> Iterator[Finding]:
    return check_disk("cache", cache_root(), "note", "set SUPANCL_CACHE to a folder that can be written")


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "Python": check_python,
    "supancl": check_supancl,
    "packages": check_packages,
    "GPU": check_gpu,
    "cores": check_cores,
    "memory": check_memory,
    "this folder": check_run_folder,
    "cache": check_cache_folder,
}
