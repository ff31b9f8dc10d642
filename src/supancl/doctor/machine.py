"""Checks of the machine: GPU, precision, cores, memory, disks and terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from supancl.data.store.cache import cache_root
from supancl.doctor.findings import Finding, Status
from supancl.errors import plural
from supancl.files import reason, why_unwritable

if TYPE_CHECKING:
    import torch
else:
    from supancl.lazy import torch

CUDA_INDEX = "https://pytorch.org/get-started/locally"
LOW_GPU_SHARE = 0.5  # of its memory free, below which another process is named
MIN_RUN_BYTES = 100e6  # a run of a small encoder with two checkpoints
LITTLE_BYTES = 5e9  # less space is soon used up by checkpoints and caches
MIN_SHARED_BYTES = 64 * 2**20  # Docker's default
MIN_WIDTH = 80


# --- GPU --------------------------------------------------------------------------------------------------------------


def check_gpu() -> Iterator[Finding]:
    build = describe_torch_build()
    with warnings.catch_warnings(record=True) as caught:  # a driver that is too old is a warning
        warnings.simplefilter("always")
        is_usable = torch.cuda.is_available()
    if is_usable:
        for index in range(torch.cuda.device_count()):
            yield check_one_gpu(torch.device("cuda", index), build)
        return
    driver, hidden = find_driver(), os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    values = {"build": build, "driver": driver}
    if driver and torch.version.cuda is None and torch.version.hip is None:
        text = f"there is one (driver {driver}), but torch is a {build}: training would use the CPU"
        yield Finding("GPU", "note", text, f"install torch with CUDA: {CUDA_INDEX}", values)
    elif driver and hidden:
        yield Finding("GPU", "note", "hidden by CUDA_VISIBLE_DEVICES=", "unset it to train on the GPU", values)
    elif driver:
        why = " ".join(str(caught[0].message).split())[:200] if caught else "torch finds none"
        text = f"there is one (driver {driver}), but torch ({build}) cannot use it: {why}"
        advice = "update the driver, or in a container allow the GPU (docker: --gpus all)"
        yield Finding("GPU", "note", text, advice, values)
    elif torch.version.cuda is not None:
        advice = "nothing; the CPU build of torch would do, and is some GB smaller (README)"
        yield Finding("GPU", "ok", f"none (torch is a {build}): training uses the CPU", advice, values)
    else:
        yield Finding("GPU", "ok", f"none (torch is a {build}): training uses the CPU", values=values)


def describe_torch_build() -> str:
    if torch.version.cuda is not None:
        return f"CUDA {torch.version.cuda} build"
    return "ROCm build" if torch.version.hip is not None else "CPU build"


def find_driver(proc: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's driver on this machine, whatever torch thinks; empty if there is none."""
    try:
        match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", proc.read_text())
    except OSError:
        return ""
    return match[1] if match else "unknown"


def check_one_gpu(device: torch.device, build: str) -> Finding:
    name = torch.cuda.get_device_name(device)
    free, total = torch.cuda.mem_get_info(device)
    driver = find_driver()
    text = f"{name}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free, {build}" + (f", driver {driver}" if driver else "")
    values = {"name": name, "free_bytes": free, "total_bytes": total, "build": build, "driver": driver}
    try:
        torch.ones(8, device=device).sum().item()
    except Exception as error:  # a GPU that is too old or too new for this build, or one out of order
        advice = f"use a build of torch for this GPU ({CUDA_INDEX}), or --device cpu"
        return Finding("GPU", "problem", f"{text}: it cannot compute ({reason(error)})", advice, values)
    if free < LOW_GPU_SHARE * total:
        advice = "another process holds the rest; nvidia-smi names it"
        return Finding("GPU", "note", text, advice, values)
    return Finding("GPU", "ok", text, values=values)


def check_precision() -> Iterator[Finding]:
    from supancl.core.precision import auto_precision, has_bf16

    if not torch.cuda.is_available():
        yield Finding("precision", "ok", "fp32, as always on a CPU", values={"chosen": "fp32"})
        return
    device = torch.device("cuda")
    has_tf32 = torch.cuda.get_device_capability(device) >= (8, 0)
    values = {"chosen": auto_precision(device), "bf16": has_bf16(device), "tf32": has_tf32}
    supported = ", ".join(name for name in ("bf16", "tf32") if values[name])
    text = f"{values['chosen']} is chosen; this GPU supports {supported or 'neither bf16 nor tf32'}"
    advice = "" if values["bf16"] else "nothing; GPUs from Ampere (2020) on train about twice as fast with bf16"
    yield Finding("precision", "ok" if values["bf16"] else "note", text, advice, values)


def check_compiler() -> Iterator[Finding]:
    """What torch.compile needs; it is used on a GPU alone."""
    if not torch.cuda.is_available():
        return
    missing = [] if find_spec("triton") else ["triton"]
    missing += [] if any(map(shutil.which, ("cc", "gcc", "clang"))) else ["a C compiler"]
    if missing:
        advice = "long runs train at about 0.6 of the speed; apt-get install gcc, and torch's own build brings triton"
        yield Finding("compiler", "note", f"{' and '.join(missing)} not found", advice)
    else:
        yield Finding("compiler", "ok", "runs of 5,000 steps and more are compiled")


# --- cores and memory -------------------------------------------------------------------------------------------------


def check_cores() -> Iterator[Finding]:
    cores, threads, limit = usable_cores(), torch.get_num_threads(), core_limit()
    text = f"{plural(cores, 'core')}, torch uses {plural(threads, 'thread')}"
    values = {"cores": cores, "threads": threads, "limit": limit, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}
    if limit is not None and limit < cores:
        text += f"; this container may use {limit:g}"
        cores = max(1, round(limit))
    if threads < cores and "OMP_NUM_THREADS" in os.environ:
        advice = f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} leaves cores idle on a CPU: unset OMP_NUM_THREADS"
        yield Finding("cores", "note", text, advice, values)
    elif threads > cores:
        advice = f"more threads than cores slow each other down: export OMP_NUM_THREADS={cores}"
        yield Finding("cores", "note", text, advice, values)
    else:
        yield Finding("cores", "ok", text, values=values)


def usable_cores() -> int:
    """Cores that this process may use, which taskset and schedulers restrict."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def core_limit(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many cores' worth of time a container gets; None without a limit."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # no control groups, or "max"
        return None


def check_memory() -> Iterator[Finding]:
    from supancl.training.cost import available_memory, in_gigabytes

    available = available_memory(torch.device("cpu"))
    if available is None:
        yield Finding("memory", "ok", "how much is free is not known on this system")
        return
    text, values = f"{in_gigabytes(available)} free", {"free_bytes": available}
    if available < 4e9:
        advice = "close other programs, or train with smaller batches (--batch-size) and images (--set views.size)"
        yield Finding("memory", "note", text, advice, values)
    else:
        yield Finding("memory", "ok", text, values=values)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """/dev/shm, which only processes that train together need: images are decoded by threads."""
    if not folder.is_dir():
        return
    total = shutil.disk_usage(folder).total
    text, values = f"{format_gigabytes(total)} in {folder}", {"total_bytes": total}
    if total <= MIN_SHARED_BYTES:
        advice = "enough for one process; for torchrun give a container more (docker: --shm-size=1g)"
        yield Finding("shared mem.", "note", text, advice, values)
    else:
        yield Finding("shared mem.", "ok", text, values=values)


# --- disks ------------------------------------------------------------------------------------------------------------


def check_run_folder() -> Iterator[Finding]:
    yield check_disk("this folder", Path.cwd(), "problem", "go to a folder of your own, or name one with --out")


def check_cache_folder() -> Iterator[Finding]:
    yield check_disk("cache", cache_root(), "note", "set SUPANCL_CACHE to a folder that can be written")


def check_disk(name: str, folder: Path, if_unusable: Status, way_out: str) -> Finding:
    """Free space of a folder, or of the folder in which it would be made."""
    if why := why_unwritable(folder):
        return Finding(name, if_unusable, f"{folder} cannot be written ({why})", way_out, {"folder": str(folder)})
    free = shutil.disk_usage(nearest_folder(folder)).free
    if free < MIN_RUN_BYTES:
        text, advice = f"{free / 1e6:.0f} MB free in {folder}", f"make room, or {way_out}"
        return Finding(name, if_unusable, text, advice, {"folder": str(folder), "free_bytes": free})
    values, text = {"folder": str(folder), "free_bytes": free}, f"{format_gigabytes(free)} free in {folder}"
    if free < LITTLE_BYTES:
        return Finding(name, "note", text, "make room; supancl runs lists the size of each run", values)
    return Finding(name, "ok", text, values=values)


def nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def format_gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:,.0f} GB" if nbytes >= 10e9 else f"{nbytes / 1e9:.1f} GB"


# --- terminal ---------------------------------------------------------------------------------------------------------


def check_terminal() -> Iterator[Finding]:
    encoding = (sys.stdout.encoding or "unknown").lower()
    width = shutil.get_terminal_size().columns
    is_terminal = sys.stdout.isatty()
    text = f"{width} columns, {encoding}" if is_terminal else f"none (output goes to a file or a program), {encoding}"
    values = {"columns": width, "encoding": encoding, "is_terminal": is_terminal}
    if not encoding.startswith("utf"):
        advice = "curves are left out, and names may show question marks: export PYTHONUTF8=1, or LANG=C.UTF-8"
        yield Finding("terminal", "note", text, advice, values)
    elif is_terminal and width < MIN_WIDTH:
        yield Finding("terminal", "note", text, f"tables need {MIN_WIDTH} columns; make the window wider", values)
    else:
        yield Finding("terminal", "ok", text, values=values)
