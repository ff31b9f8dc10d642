"""For step.py: rows made of whole runs (`command`, `agree`) and the profile of the replayed step."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from step_ours import TINY_CNN, TINY_HEADS, Contender, compiler_cache, compiler_cache_filled, wait
from step_rows import Bench, Record
from torch.profiler import ProfilerActivity, profile, record_function

ROOT = Path(__file__).resolve().parents[2]
COMPILED = {  # row -> recipes whose steps it compiles; the loss is in the graph, so SimSiam's is not SupSiam's
    "supsiam": ("cifar100.supsiam",), "supbyol": ("cifar100.supbyol",), "supcon": ("cifar100.supcon",),
    "ratios": ("cifar100.supsiam", "cifar100.simsiam", "cifar100.supbyol", "cifar100.byol"),
    "imagenet": ("imagenet100.supsiam",), "vit": ("vit.supbyol",),
    "folder": ("imagenet100.supsiam", "cifar100.supsiam"), "command": ("cifar100.supsiam",),
}  # fmt: skip
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::nonzero",
)
PROFILED = 20


# --- compiling beforehand ---------------------------------------------------------------------------------------------


def compile_at_once(rows: list[str], bench: Bench) -> dict[str, Record]:
    """Everything that the rows compile, by a process each, all at once: minutes become one.

    What they found to be fastest beside each other is forgotten; the rows try that again by themselves.
    """
    cold = not compiler_cache_filled()
    names = list(dict.fromkeys(name for row in rows for name in COMPILED.get(row, ())))
    script = str(Path(__file__).with_name("step.py"))
    flags = ["--device", bench.device.type, *(["--tiny"] if bench.tiny else [])]
    running = [
        subprocess.Popen([sys.executable, script, "--first-step", name, *flags], stdout=subprocess.PIPE)
        for name in names
    ]
    facts: dict[str, Record] = {}
    for name, process in zip(names, running, strict=True):
        said = process.communicate()[0].decode().splitlines()
        if process.returncode == 0:
            state = "empty" if cold else "filled before"
            facts[name] = {
                "first_s": json.loads(said[-1])["first_s"],
                "compiler_cache": f"{state}, {len(names)} compiled at once",
            }
        print(f"  {name}: {facts.get(name, 'failed')}", flush=True)
    for found in compiler_cache().rglob("*.best_config") if compiler_cache_filled() else ():
        found.unlink()
    return facts


# --- the whole command ------------------------------------------------------------------------------------------------


def synthetic_npz(path: Path, images: int) -> Path:
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", images), ("test", max(20, images // 5))):
        arrays[f"{split}_images"] = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 100 if images >= 1000 else np.arange(count) % 4
    np.savez(path, **arrays)
    return path


def started(source: str, epochs: int, out: Path, settings: Record, tiny: bool, log: Any) -> subprocess.Popen[bytes]:
    """`supancl pretrain cifar100.supsiam` in a process of its own."""
    settings = {**settings, **({**TINY_CNN, **TINY_HEADS} if tiny else {})}
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "supancl.cli", "pretrain", "cifar100.supsiam", "--data", source]
    command += ["--epochs", str(epochs), "--out", str(out), "--quiet", *flags]
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": path})


def rows_of(out: Path) -> list[Record]:
    """The whole lines of a run's metrics that are there so far."""
    file = out / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def ended(process: subprocess.Popen[bytes], log: Path) -> None:
    if process.wait():
        raise RuntimeError(
            f"{' '.join(process.args[2:5])} ended with {process.returncode}: "  # type: ignore[index]
            + log.read_text(errors="replace")[-500:]
        )


def command_row(bench: Bench) -> list[Record]:
    """`supancl pretrain cifar100.supsiam` from outside: what its log says, and what the clock on the wall says.

    The clock's figure has everything in it: monitor, checkpoints, the encoder's file, the log. It leaves out the first
    fifth of the epochs.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "run", Path(folder) / "log.txt"
        source = bench.source or str(synthetic_npz(Path(folder) / "data.npz", 64 if bench.tiny else 50_000))
        epochs, begin = (4 if bench.tiny else bench.epochs), time.perf_counter()
        seen: dict[int, float] = {}  # epoch -> when its monitor's row was there
        first = 0.0
        with log.open("wb") as said:
            process = started(source, epochs, out, {"train.device": bench.device.type}, bench.tiny, said)
            while process.poll() is None:
                now = time.perf_counter()
                rows = rows_of(out)
                first = first or (now - begin if rows else 0.0)
                for row in rows:
                    if row["kind"] == "monitor":
                        seen.setdefault(row["epoch"], now)
                time.sleep(0.02)
        ended(process, log)
        whole = time.perf_counter() - begin
        rows = rows_of(out)
        kept = json.loads((out / "recipe.json").read_text())["recipe"]["train"]
    record = _of_command(rows, seen, kept, epochs, "real" if bench.source else "synthetic")
    return [{**record, "whole_s": whole, "first_row_s": first}]


def _of_command(rows: list[Record], seen: dict[int, float], kept: Record, epochs: int, data: str) -> Record:
    later = [row for row in rows if row["epoch"] >= epochs // 2]
    rates = [row["images_per_second"] for row in later if row["kind"] == "train"]
    looked = sorted(seen)  # the monitor need not look every epoch
    epoch_s = [(seen[n] - seen[m]) / (n - m) for m, n in pairwise(looked) if m >= epochs // 5]
    images = max(row["step"] for row in rows) // epochs * kept["batch_size"]
    rate = statistics.median(rates)
    how = ", ".join(
        [kept["precision"], "compiled" if kept["compile"] else "as written", *(["replayed"] if kept["replay"] else [])]
    )
    own = {
        "name": "ours, by its log",
        "rate": rate,
        "spread": [min(rates), max(rates)],
        "ms": 1e3 * kept["batch_size"] / rate,
        "how": how,
    }
    record = {
        "key": "command",
        "work": f"supancl pretrain cifar100.supsiam, {epochs} epochs, {data} data",
        "batch": kept["batch_size"],
        "ours": own,
        "peers": [],
    }
    if epoch_s:
        record["wall"] = {"epoch_s": statistics.median(epoch_s), "rate": images / statistics.median(epoch_s)}
    print(f"  by its log {rate:,.0f} images/s, by the clock {record.get('wall')}", flush=True)
    return record


# --- eager against fast -----------------------------------------------------------------------------------------------


def agree_row(bench: Bench) -> list[Record]:
    """The same training as written and on the fast path, three seeds each: do they end at the same k-NN?

    The slow ones run side by side in the background while the fast ones take turns; no speed is read off here.
    """
    if not bench.source:
        return [{"key": "agree", "work": "20 epochs as written against the fast path", "note": "needs --data"}]
    epochs = 1 if bench.tiny else 20
    cuda = bench.device.type == "cuda"
    common = {
        "train.device": bench.device.type,
        "train.monitor_every": epochs,
        "train.precision": "bf16" if cuda else "fp32",
    }
    ways: dict[str, Record] = {
        "as written": {"train.compile": False, "train.replay": False},
        "fast": {"train.compile": cuda, "train.replay": cuda},
    }
    scores: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:

        def run(way: str, seed: int) -> tuple[subprocess.Popen[bytes], Path]:
            out = Path(folder) / f"{way.replace(' ', '-')}-{seed}"
            with out.with_suffix(".txt").open("wb") as said:
                settings = {**common, **ways[way], "train.seed": seed}
                return started(bench.source, epochs, out, settings, bench.tiny, said), out

        slow = [run("as written", seed) for seed in range(bench.seeds)]
        try:
            for seed in range(bench.seeds):
                process, out = run("fast", seed)
                ended(process, out.with_suffix(".txt"))
                scores["fast"].append(_knn(out))
                print(f"  fast, seed {seed}: k-NN {scores['fast'][-1]:.2f}", flush=True)
            for seed, (process, out) in enumerate(slow):
                ended(process, out.with_suffix(".txt"))
                scores["as written"].append(_knn(out))
                print(f"  as written, seed {seed}: k-NN {scores['as written'][-1]:.2f}", flush=True)
        finally:
            for process, _ in slow:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
    return [
        {
            "key": "agree",
            "work": f"cifar100.supsiam, {epochs} epochs, k-NN on held-out images, as written against the fast path",
            "seeds": list(range(bench.seeds)),
            "knn": scores,
        }
    ]


def _knn(out: Path) -> float:
    return float([row for row in rows_of(out) if row["kind"] == "monitor"][-1]["knn"])


# --- the profile ------------------------------------------------------------------------------------------------------


def profile_rows(bench: Bench) -> list[Record]:
    """Where the time goes, and whether the host ever waits, in each step that this call has built (or SupSiam's)."""
    names = [name for name in bench.built if name.partition(".")[2] in ("supsiam", "supbyol")] or ["cifar100.supsiam"]
    return [_profiled(name, bench.ours(name), bench) for name in names]


def _profiled(name: str, own: Contender, bench: Bench) -> Record:
    cuda = bench.device.type == "cuda"
    steps = 2 if bench.tiny else PROFILED
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    wait(bench.device)
    with profile(activities=activities, acc_events=True) as profiler:
        with record_function("the loop"):
            for _ in range(steps):
                own.step()
        wait(bench.device)
    events = list(profiler.events() or [])
    loop = next(event for event in events if event.name == "the loop").time_range
    waits = dict.fromkeys([*WAITS, "Memcpy DtoH"], 0)
    for event in events:
        inside = loop.start <= event.time_range.start <= loop.end
        for wanted in waits:
            # a copy to the host is one wherever it runs: the device may be behind the loop
            if event.name.startswith(wanted) and (inside or wanted == "Memcpy DtoH"):
                waits[wanted] += 1
    averages = profiler.key_averages()
    spent = [
        (e.key, (e.self_device_time_total if cuda else e.self_cpu_time_total) / steps, e.count / steps)
        for e in averages
        if e.key != "the loop"
    ]
    spent.sort(key=lambda entry: -entry[1])
    total = sum(us for _, us, _ in spent)
    lines = [
        f"{name}: {total:,.0f} us a step in kernels; in {steps} steps: "
        + ", ".join(f"{wanted} {count}" for wanted, count in waits.items())
    ]
    lines += [f"{us:9.1f} us {count:7.1f} x  {key[:110]}" for key, us, count in spent[:40]]
    print("  " + "\n  ".join(lines[:12]), flush=True)
    if bench.text_to is not None:
        (bench.text_to / f"profile-{name}.txt").write_text("\n".join(lines) + "\n")
    top = [{"kernel": key[:80], "us": us, "times": count} for key, us, count in spent[:8]]
    return {
        "key": f"profile-{name}",
        "work": f"{name}, {steps} steps profiled",
        "how": own.facts["how"],
        "kernel_us": total,
        "waits": waits,
        "top": top,
    }
