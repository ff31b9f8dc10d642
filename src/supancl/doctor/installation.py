"""Checks of Python, the packages and the extras."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from supancl.doctor.findings import Finding, why_no_torch
from supancl.files import reason
from supancl.version import __version__

TESTED_PYTHON = ((3, 11), (3, 12))
# package -> its module, and the newest version that the tests ran with: constraints.txt
TESTED = {
    "torch": ("torch", "2.15.0"),
    "torchvision": ("torchvision", "0.29.2"),
    "timm": ("timm", "1.0.30"),
    "numpy": ("numpy", "2.4.6"),
    "scikit-learn": ("sklearn", "1.9.1"),
    "scipy": ("scipy", "1.17.1"),
    "pillow": ("PIL", "13.0.0"),
    "safetensors": ("safetensors", "0.8.0"),
}
# extra of pyproject.toml -> what it is for
EXTRAS = {
    "map": "maps of more than 5,000 images",
    "onnx": "export for ONNX",
    "transformers": "export for transformers",
    "hf": "data of hf:NAME",
    "parquet": "features as .parquet",
    "detect": "COCO's metrics of detectors",
    "heic": ".heic photographs of phones",
    "yaml": "recipes in .yaml files",
    "wandb": "--logger wandb",
    "mlflow": "--logger mlflow",
}
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "SUPANCL_CACHE",
    "XDG_CACHE_HOME",
    "HF_HUB_OFFLINE",
    "TORCH_HOME",
    "PYTHONPATH",
)


def check_python() -> Iterator[Finding]:
    text = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    oldest, newest = (".".join(map(str, pair)) for pair in (TESTED_PYTHON[0], TESTED_PYTHON[-1]))
    if sys.version_info[:2] > TESTED_PYTHON[-1]:
        yield Finding("Python", "note", text, f"newer than tested; if something fails, use Python {oldest} to {newest}")
    elif platform.system() != "Linux":
        yield Finding("Python", "note", text, "only Linux is tested; most things should work elsewhere")
    else:
        yield Finding("Python", "ok", text)


def check_supancl() -> Iterator[Finding]:
    place = Path(__file__).resolve().parents[1]
    text, values = f"{__version__} in {place}", {"version": __version__, "folder": str(place)}
    try:
        installed = version("supancl")
    except PackageNotFoundError:
        advice = "it runs from its sources, without a list of what it needs: pip install -e . there"
        yield Finding("supancl", "note", text, advice, values)
        return
    if installed != __version__:
        advice = f"pip knows of version {installed}: pip install -e . in the sources, or pip uninstall the other one"
        yield Finding("supancl", "note", text, advice, values)
    else:
        yield Finding("supancl", "ok", text, values=values)


def check_packages() -> Iterator[Finding]:
    """The packages that are needed, in one finding if all of them are fine."""
    good: list[Finding] = []
    bad: list[Finding] = []
    versions: dict[str, object] = {}
    for package, (module, newest) in TESTED.items():
        finding = check_package(package, module, newest)
        versions[package] = finding.values.get("version")
        (good if finding.status == "ok" else bad).append(finding)
    if good:
        yield Finding("packages", "ok", ", ".join(finding.text for finding in good), values=versions)
    yield from bad


def check_package(package: str, module: str, newest: str) -> Finding:
    from packaging.version import Version  # matplotlib needs it too

    oldest = oldest_versions().get(package)
    install_line = f"pip install '{package}>={oldest}'" if oldest else f"pip install {package}"
    try:
        installed = Version(version(package))
    except PackageNotFoundError:
        return Finding(package, "problem", "is not installed", install_line)
    values, text = {"version": str(installed)}, f"{package} {installed}"
    if oldest and installed < Version(oldest):
        return Finding(package, "problem", f"{installed} is too old; {oldest} is needed", install_line, values)
    failure = why_no_torch() if module == "torch" else why_not_imported(module)
    if failure:
        advice = "install it again: pip install --force-reinstall " + package
        if module in ("torchvision", "timm"):  # timm imports torchvision
            advice = "torch and torchvision must be of one release: pip install -U torch torchvision"
        return Finding(package, "problem", f"{installed} cannot be imported ({failure})", advice, values)
    if installed.release > Version(newest).release:
        return Finding(package, "note", text, f"newer than tested; if something fails, use {newest}", values)
    return Finding(package, "ok", text, values=values)


def oldest_versions() -> dict[str, str]:
    """The oldest supported version of each package, as the installed supancl requires it."""
    from packaging.requirements import Requirement

    try:
        requirements = map(Requirement, requires("supancl") or ())
        return {r.name: spec.version for r in requirements for spec in r.specifier if spec.operator == ">="}
    except PackageNotFoundError:
        return {}


def why_not_imported(module: str) -> str:
    try:
        import_module(module)
    except Exception as error:  # mismatched binaries raise OSError, RuntimeError or AttributeError
        return reason(error)
    return ""


def check_extras() -> Iterator[Finding]:
    try:
        missing = [extra for extra in EXTRAS if packages_missing(extra)]
    except PackageNotFoundError:
        advice = "pip install -e . in the sources, to know what each needs"
        yield Finding("extras", "note", "not known: supancl runs without an installation", advice)
        return
    present = [extra for extra in EXTRAS if extra not in missing]
    text = f"installed: {', '.join(present) or 'none'}"
    text += "; not installed: " + ", ".join(f"{extra} ({EXTRAS[extra]})" for extra in missing) if missing else ""
    advice = "if you need one of them: pip install 'supancl[NAME]'" if missing else ""
    yield Finding("extras", "ok", text, advice, {"present": present, "missing": missing})


def packages_missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed, or too old."""
    from packaging.requirements import Requirement

    missing = []
    for requirement in map(Requirement, requires("supancl") or ()):
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.marker.evaluate({"extra": ""}):
            continue  # needed without any extra, under a condition
        try:
            if not requirement.specifier.contains(version(requirement.name), prereleases=True):
                missing.append(requirement.name)
        except PackageNotFoundError:
            missing.append(requirement.name)
    return missing


def check_environment() -> Iterator[Finding]:
    """Variables that change what a command does, where they are set."""
    values = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if not values:
        return
    text = "set: " + ", ".join(f"{name}={value}" for name, value in values.items())
    is_slow = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") != "0"
    advice = "unset CUDA_LAUNCH_BLOCKING, which makes a GPU slow" if is_slow else ""
    yield Finding("variables", "note" if is_slow else "ok", text, advice, values)
