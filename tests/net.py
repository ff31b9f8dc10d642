"""Does this tree still compute what another commit computed, bit for bit? Run it before and after moving code.

    make net BASE=COMMIT        or: python tests/net.py COMMIT

Both trees run the cases below on this machine with one thread: tiny runs of every method in every mode, and every
evaluation on the digits. Compared are a digest of each final checkpoint, the logged losses, and the evaluations' JSON.
Only public names and the command line are used, so that the same file serves both trees.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SIDE = 8
Outcome = dict[str, Any]
# fields of a result that tell where and when it was made, not what it is
CIRCUMSTANCES = {"seconds", "commit", "versions", "hardware", "images_per_second", "time", "out", "encoder", "pictures"}
CIRCUMSTANCES |= {"row", "crc"}  # of the log: the checksum covers the speed
# fields that say how much an accuracy means; older commits do not have them
CIRCUMSTANCES |= {"tested_images", "accuracy_interval", "chance", "cross_validated", "baselines", "verdict"}
CIRCUMSTANCES |= {"balanced_accuracy", "by_class_size"}
CIRCUMSTANCES |= {"knn_k", "knn_interval", "linear_interval"}  # of the monitor
# parts of a checkpoint that version 1 did not have
ADDED_TO_CHECKPOINTS = {"schema_version", "digest", "settings", "log_rows"}


# --- one tree ---------------------------------------------------------------------------------------------------------


def tiny_data(images: int = 48, classes: int = 3, unlabelled: float = 0.0, channels: int = 1) -> Any:
    import numpy as np

    from supancl import from_arrays

    random = np.random.default_rng(0)
    shape = (images, SIDE, SIDE) if channels == 1 else (images, SIDE, SIDE, channels)
    pixels, labels = random.integers(0, 256, shape, dtype=np.uint8), np.arange(images) % classes
    labels = np.where(random.random(images) < unlabelled, -1, labels)
    return from_arrays(pixels, labels, classes=[f"class {i}" for i in range(classes)])


def tiny_recipe(method: str, settings: dict[str, Any], compat: str = "paper") -> Any:
    from supancl import METHODS, MLP, HeadSpec, recipe

    row = METHODS[method]
    projector = MLP((), None, norm="none") if method == "crossentropy" else MLP((16,), 16)
    built = replace(
        recipe("digits.supsiam", compat=compat), name=f"tiny.{method}", method=method, branches=row.branches,
        loss=row.loss, pool=replace(row.pool, size=20),
        heads=HeadSpec(projector, MLP((8,), 16) if row.predictor else None),
    )  # fmt: skip
    usual = {
        "views.size": SIDE, "encoder.width": 16, "train.batch_size": 8, "train.epochs": 2, "train.log_every": 1,
        "train.device": "cpu", "optimizer.reference_batch": 8, "optimizer.lr": 0.05, "schedule.warmup_epochs": 1,
    }  # fmt: skip
    return built.with_set(usual | settings)


def digest(value: Any) -> str:
    """One hash over every tensor and number of nested containers, by name."""
    import torch

    content = hashlib.sha256()

    def add(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            content.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            content.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                add(f"{name}.{key}", value[key])
        elif isinstance(value, (list, tuple)):
            for number, item in enumerate(value):
                add(f"{name}.{number}", item)
        else:
            content.update(f"{name} {value!r}".encode())

    add("", value)
    return content.hexdigest()


def outcome(folder: Path) -> Outcome:
    """What a run left: its last checkpoint's digest, and every logged number that is no speed."""
    import torch

    last = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    content = torch.load(last, weights_only=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "checkpoint": digest({key: value for key, value in content.items() if key not in ADDED_TO_CHECKPOINTS}),
        "logged": [without_circumstances(row) for row in rows],
    }


def without_circumstances(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_circumstances(item) for key, item in value.items() if key not in CIRCUMSTANCES}
    return [without_circumstances(item) for item in value] if isinstance(value, list) else value


def train(
    folder: Path,
    method: str,
    settings: dict[str, Any] | None = None,
    compat: str = "paper",
    stop: int | None = None,
    **data: Any,
) -> Outcome:
    from supancl import Interrupted, Reporter, pretrain

    class Stop(Reporter):
        def stepped(self, step: int, row: object) -> None:
            if step == stop:
                os.kill(os.getpid(), signal.SIGTERM)

    recipe, images = tiny_recipe(method, settings or {}, compat), tiny_data(**data)
    with suppress(Interrupted):
        pretrain(recipe, images, folder, reporter=Stop())
    if stop is not None:
        pretrain(None, images, folder, resume=True)
    return outcome(folder)


def training_cases() -> dict[str, Callable[[Path], Outcome]]:
    from supancl import METHODS

    cases: dict[str, Callable[[Path], Outcome]] = {}

    def add(name: str, *args: Any, **kwargs: Any) -> None:
        cases[name] = lambda folder: train(folder, *args, **kwargs)

    for method in METHODS:
        add(f"{method}", method)
        add(f"{method}, accumulated", method, {"train.accumulate": 2})
        add(f"{method}, half labelled", method, unlabelled=0.5)
        add(f"{method}, compat", method, compat="released-code")
        add(f"{method}, resumed", method, stop=5)
    for kind in ("queue", "class-queues", "prototypes", "none"):
        add(f"supsiam, {kind}", "supsiam", {"pool.kind": kind, "pool.size": 4})
        add(f"supbyol, {kind}, resumed", "supbyol", {"pool.kind": kind, "pool.size": 4}, stop=7)
    for samples in (1, 4):
        add(f"supsiam, M = {samples}", "supsiam", {"loss.samples": samples}, stop=6)
    add("supsiam, local views", "supsiam", {"views.local": {"count": 2, "size": 4, "scale": [0.2, 0.5]}})
    add("supsiam, balanced", "supsiam", {"data.balanced": True})
    add("supsiam, squared", "supsiam", {"loss.form": "squared"})
    colours = {"encoder.channels": 3, "encoder.mean": [0.5] * 3, "encoder.std": [0.5] * 3}
    add(
        "supsiam, colours and blur",
        "supsiam",
        {**colours, "views.blur": 0.5, "views.grey": 0.2, "views.hue": 0.1},
        channels=3,
    )
    add("byol, adamw", "byol", {"optimizer.name": "adamw", "optimizer.lr": 1e-3, "schedule.predictor": "follows"})
    return cases


def command(*words: str) -> None:
    script = "import sys; from supancl.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"supancl {' '.join(words)} ended with {done.returncode}: {done.stderr[-500:]}")


def two_ranks() -> Outcome:
    """One run by two processes that exchange through gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import net; from pathlib import Path; "
        "net.train(Path('ranks'), 'supbyol')"
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(Path(__file__).parent)],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(2)
    ]
    if any(rank.wait(300) for rank in ranks):
        raise RuntimeError("a rank failed")
    return outcome(Path("ranks"))


def evaluation_cases() -> dict[str, list[str]]:
    """Commands that judge the run `digits`; what each leaves under digits/evaluate and in its --json is compared."""
    return {
        "knn": ["evaluate", "knn", "digits", "--k", "20,5"],
        "linear": ["evaluate", "linear", "digits"],
        "linear sgd": ["evaluate", "linear", "digits", "--probe", "sgd", "--epochs", "5"],
        "linear augmented": ["evaluate", "linear", "digits", "--probe", "sgd", "--augmented", "--epochs", "2"],
        "variance": ["evaluate", "variance", "digits"],
        "transfer": ["evaluate", "transfer", "digits", "--data", "digits"],
        "fewshot": ["evaluate", "fewshot", "digits", "--data", "digits", "--shots", "1,5", "--episodes", "50"],
        "finetune": ["evaluate", "finetune", "digits", "--epochs", "1", "--lr", "0.1"],
        "import": ["import", "digits", "--out", "again.safetensors"],
        "study": ["paper", "study", "positives", "digits.supsiam", "--data", "digits", "--epochs", "1",
                  "--rows", "M-1,M-all", "--out", "study"],
        "alpha": ["alpha", "digits.supsiam", "--data", "digits", "--epochs", "1", "--alphas", "0,.5,1", "--seeds", "1",
                  "--out", "alpha"],
        "collapse": ["paper", "collapse", "digits.supsiam", "--data", "digits", "--epochs", "1", "--out", "collapse"],
        "theory": ["paper", "theory"],
        "toy": ["paper", "toy", "--quick", "--seeds", "1", "--out", "toy"],
        "tables": ["paper", "table", "F.2", "study"],
        "recipes": ["recipes", "imagenet100.supbyol"],
    }  # fmt: skip


def run_cases(only: str) -> dict[str, Outcome]:
    """Every case in the working folder, by name; one that fails says how."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, Outcome] = {}

    def attempt(name: str, case: Callable[[], Outcome]) -> None:
        if only in name:
            try:
                found[name] = case()
            except Exception as error:
                found[name] = {"failed": f"{type(error).__name__}: {error}"}

    for number, (name, case) in enumerate(training_cases().items()):
        attempt(f"train: {name}", lambda number=number, case=case: case(Path(f"run-{number}")))  # type: ignore[misc]
    attempt("train: supbyol, two ranks", two_ranks)

    def judge(words: list[str]) -> Outcome:
        if not Path("digits").exists():
            command("pretrain", "digits.supsiam", "--epochs", "2", "--out", "digits", "--quiet")
        command(*words, "--quiet", "--json", "result.json")
        return {"result": without_circumstances(json.loads(Path("result.json").read_text()))}

    for name, words in evaluation_cases().items():
        attempt(f"command: {name}", lambda words=words: judge(words))  # type: ignore[misc]
    return found


# --- two trees --------------------------------------------------------------------------------------------------------


def kept_file(base: str, only: str) -> Path:
    """Where the outcome of a commit is kept: it hangs on this file too, and on nothing else."""
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", base], check=True, capture_output=True, text=True)
    cases = hashlib.sha256(Path(__file__).read_bytes() + only.encode()).hexdigest()
    return ROOT / "runs" / "net" / f"{commit.stdout.strip()[:12]}-{cases[:12]}.json"


def start(tree: Path, out: Path, only: str) -> subprocess.Popen[bytes]:
    out.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "OMP_NUM_THREADS": "1",
        "SUPANCL_CACHE": str(out / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [sys.executable, str(Path(__file__).resolve()), "--here", "--only", only]
    return subprocess.Popen(words, cwd=out, env=environment)


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """The dotted names of what differs; a field that only one side has counts."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(before.keys() | now.keys())
        return [line for key in keys for line in differences(before.get(key), now.get(key), f"{name}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [line for at, (one, other) in pairs for line in differences(one, other, f"{name}[{at}]")]
    same = before == now or (before != before and now != now)  # NaN is NaN
    return [] if same else [f"{name}: {str(before)[:60]} -> {str(now)[:60]}"]


def outcomes(base: str, only: str) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Of the base commit, which is kept for the next time, and of this tree, copied first: it may change meanwhile."""
    kept = kept_file(base, only)
    with TemporaryDirectory(prefix="net-") as scratch:
        trees = {side: Path(scratch) / f"tree-{side}" for side in ("before", "now")}
        shutil.copytree(ROOT / "src", trees["now"] / "src")
        runs = {"now": start(trees["now"], Path(scratch) / "now", only)}
        if not kept.exists():
            trees["before"].mkdir()
            archive = subprocess.run(["git", "-C", str(ROOT), "archive", base, "src"], check=True, capture_output=True)
            subprocess.run(["tar", "x", "-C", str(trees["before"])], input=archive.stdout, check=True)
            runs["before"] = start(trees["before"], Path(scratch) / "before", only)
        codes = [run.wait() for run in runs.values()]
        if any(codes):
            raise SystemExit("a tree could not run the cases")
        if "before" in runs:
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(scratch) / "before" / "found.json", kept)
        return json.loads(kept.read_text()), json.loads((Path(scratch) / "now" / "found.json").read_text())


def compare(base: str, only: str) -> int:
    before, now = outcomes(base, only)
    names, bad = sorted(before.keys() | now.keys()), set()
    new = [name for name in names if name not in before and "failed" not in now[name]]
    print(*(f"NEW      {name}" for name in new), sep="\n", end="\n" * bool(new))
    for name in sorted({*names} - {*new}):
        sides = (before.get(name, {}), now.get(name, {}))
        for line in differences(*sides)[:3]:
            bad.add(name)
            print(f"DIFFERS  {name}  {line}")
        for side, outcome_of in zip(("before", "now"), sides, strict=True):
            if "failed" in outcome_of:
                bad.add(name)
                print(f"FAILED   {name}, {side}: {outcome_of['failed']}")
    print(f"{len(names) - len(new) - len(bad)} of {len(names) - len(new)} cases are equal to {base}")
    return 1 if bad or not names else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", nargs="?", default="HEAD", help="the commit to compare this tree with")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        Path("found.json").write_text(json.dumps(run_cases(args.only)))
        sys.exit(0)
    sys.exit(compare(args.base, args.only))
