"""`doctor`: is the installation fine? Nothing here needs torch: that is one of the things to find out."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from supancl.data.store.cache import cache_root
from supancl.errors import CheckFailed
from supancl.files import reason, why_unwritable
from supancl.reporter import show
from supancl.version import __version__

PACKAGES = {
    "torch": "torch", "torchvision": "torchvision", "timm": "timm", "numpy": "numpy", "scikit-learn": "sklearn",
    "scipy": "scipy", "pillow": "PIL", "pyarrow": "pyarrow", "safetensors": "safetensors",
}  # fmt: skip
EXTRAS = {
    "openTSNE": "large maps", "onnx": "export", "transformers": "export", "datasets": "hf:NAME",
    "pycocotools": "detect", "wandb": "logger", "mlflow-skinny": "logger", "argcomplete": "TAB",
}  # fmt: skip
LITTLE_SPACE = 5e9  # bytes on a disk


class Finding(NamedTuple):
    """A line of the list; a problem is something that training cannot do without."""

    name: str
    text: str
    is_problem: bool = False


def doctor() -> dict[str, Any]:
    """Check the installation: versions, device, memory and disk.

    Examples
    --------
    $ supancl doctor
    $ supancl doctor --json doctor.json
    """
    findings = list(examine())
    show("".join(f"{'PROBLEM' if f.is_problem else 'ok':9}{f.name:14}{f.text}\n" for f in findings))
    result: dict[str, Any] = {"checks": [finding._asdict() for finding in findings]}
    if problems := [finding.name for finding in findings if finding.is_problem]:
        raise CheckFailed(f"training does not work without: {', '.join(problems)}", result)
    return result


def examine() -> Iterator[Finding]:
    """Every check, in the order of the list."""
    yield Finding("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Finding("supancl", f"{__version__} in {Path(__file__).resolve().parents[1]}")
    for package, module in PACKAGES.items():
        try:
            import_module(module)
            yield Finding(package, version(package))
        except Exception as error:  # mismatched binaries raise OSError, RuntimeError or AttributeError
            yield Finding(package, f"cannot be imported ({reason(error)}); pip install {package}", is_problem=True)
    missing = [f"{name} ({use})" for name, use in EXTRAS.items() if not is_installed(name)]
    yield Finding("extras", f"not installed: {', '.join(missing)}" if missing else "all installed")
    yield Finding("device", describe_device())
    yield Finding("cores", f"{len(os.sched_getaffinity(0))}")
    for name, folder in (("this folder", Path.cwd()), ("cache", cache_root())):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        little = "; that is little" if free < LITTLE_SPACE else ""
        why = why_unwritable(folder)
        text = f"{folder}: cannot be written ({why})" if why else f"{folder}: {free / 1e9:.0f} GB free{little}"
        yield Finding(name, text, is_problem=bool(why) and name != "cache")


def is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def describe_device() -> str:
    """The GPUs with their memory, or how much memory a CPU run has."""
    try:
        import torch

        from supancl.training.checks import available_memory

        names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        if names:
            return ", ".join(f"{gpu.name} ({gpu.total_memory / 1e9:.0f} GB)" for gpu in names)
        free = (available_memory(torch.device("cpu")) or 0) / 1e9
        return f"CPU, {free:.0f} GB of memory free; no GPU that torch can use"
    except Exception as error:
        return f"unknown ({reason(error)})"
