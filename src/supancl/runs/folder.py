"""The folder of a run: its files, who may write to it, and whether its data are still those that it began with."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from supancl.config import flattened, parse_json, to_json
from supancl.data.opening import absolute_source
from supancl.data.splits import Data
from supancl.errors import BadInput
from supancl.files import (
    Output,
    check_no_link,
    digest,
    hold_lock,
    is_as_written,
    make_folder,
    make_inner_folder,
    read_json,
    read_text,
    remove_left_over_files,
    write_sealed_json,
    write_text,
)
from supancl.recipes import Recipe, recipe_from_json
from supancl.recipes.plugins import required_plugins
from supancl.recipes.recipe import fixed_settings
from supancl.reporter import warn
from supancl.runs.log import read_rows
from supancl.runs.provenance import commit, content_digest, versions

RESTORE = "restore them, or start another run"
CONTENT_OF = {"pixels": "every pixel", "shards": "size of each shard and bytes sampled from it"}
INNER_FOLDERS = ("checkpoints", "tensorboard", "evaluate", "loggers", "wandb", "mlruns")

T = TypeVar("T")


def folder_of_encoder(path: Path) -> Path:
    """The run folder that is named by itself or by its encoder.safetensors."""
    return path.parent if path.name == "encoder.safetensors" else path


class RunFolder:
    """recipe.json, metrics.jsonl, checkpoints/, encoder.safetensors, projector.safetensors, content.npz,
    finished.json or stopped.json, tensorboard/, evaluate/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.encoder = path / "encoder.safetensors"
        self.projector = path / "projector.safetensors"
        self.recipe_file = path / "recipe.json"
        self.metrics_file = path / "metrics.jsonl"
        self.content_file = path / "content.npz"  # a checksum of each image
        self.end_file = path / "finished.json"  # the last step, and whether the run collapsed
        self.stop_file = path / "stopped.json"  # why a run ended before its last step
        self.tensorboard = path / "tensorboard"
        self.evaluations = path / "evaluate"
        self.lock_file = path / ".lock"

    @property
    def has_run(self) -> bool:
        return self.recipe_file.exists()

    def checkpoint_files(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(self.checkpoints.glob("step-*.pt"))

    # --- who may write ------------------------------------------------------------------------------------------------

    def check_free(self, resume: bool) -> None:
        """Refuse a folder that cannot be written, or holds a run or remains of one. Nothing is created."""
        Output(self.path, replaces=Path.is_dir).check()
        for path in (self.lock_file, self.checkpoints, self.metrics_file, self.tensorboard, self.evaluations):
            check_no_link(path)  # a received folder could make a run write anywhere
        if self.has_run and not resume:
            raise BadInput(f"{self.path} already holds a run; continue it with resume, or choose another out")
        # files of a run whose recipe.json is missing, or of the other kind of run
        files = [*self.checkpoint_files(), self.encoder, self.metrics_file]
        files += [self.path / "recipe.json", self.path / "detect.json"]
        for file in [] if self.has_run else [file for file in files if file.exists()]:
            raise BadInput(
                f"{self.path} holds {file.relative_to(self.path)} of a run and no {self.recipe_file.name}; restore "
                "that and continue with resume, or choose another out"
            )

    @contextlib.contextmanager
    def claim(self, resume: bool, is_new: bool = False) -> Iterator[None]:
        """Make the folder and allow one writer at a time. A new one whose run never starts is removed again.

        The lock ends with the process, so that a killed run never blocks the next.
        """

        def refuse(owner: str) -> None:
            raise BadInput(f"{self.path} is in use by process {owner}; wait for it, stop it, or choose another out")

        self.check_free(resume)
        is_new = is_new or not self.path.exists()
        make_folder(self.checkpoints)
        with hold_lock(self.lock_file, refuse):
            try:
                self.check_free(resume)  # again: another run may have started here
                for folder in (self.path, self.checkpoints):  # half-written files of a killed run
                    remove_left_over_files(folder, min_age=0)
                remove_left_over_files(self.evaluations)  # evaluations are written without the lock
                yield
            finally:
                if not self.has_run:
                    with contextlib.suppress(OSError):  # a folder that is not empty is kept
                        self.checkpoints.rmdir()
                        self.lock_file.unlink()
                        if is_new:
                            self.path.rmdir()

    # --- recipe.json --------------------------------------------------------------------------------------------------

    def write_recipe(
        self, recipe: Recipe, classes: tuple[str, ...], data: dict[str, object], about: dict[str, Any] | None = None
    ) -> None:
        """Write recipe.json; `about` may hold `init` (the first weights) and `hardware`."""
        # an absolute path works from any folder
        source, *joined = map(absolute_source, recipe.data.all_sources)
        settings = replace(recipe, data=replace(recipe.data, source=source, joined=tuple(joined)))
        content = {
            "recipe": to_json(settings),
            "classes": list(classes),
            "data": data,
            "versions": versions(),
            "commit": commit(),
            "run": name_run(recipe, classes, data),
        }
        if plugins := required_plugins(recipe):
            content["plugins"] = plugins
            content["plugin_digests"] = {file: digest(Path(file)) for file in plugins if Path(file).is_file()}
        content |= {key: value for key, value in (about or {}).items() if value}
        write_sealed_json(self.recipe_file, content)

    def record_settings(self, recipe: Recipe, names: list[str]) -> None:
        """Write settings that changed on resume into recipe.json; everything else is kept."""
        saved = self.read_recipe()[0]
        before, now = flattened(saved), flattened(recipe)
        if changed := {name: to_json(now[name]) for name in names if now[name] != before[name]}:
            content = parse_json(read_text(self.recipe_file))
            content["recipe"] = to_json(saved.with_set(changed, because="changed on resume"))
            write_sealed_json(self.recipe_file, content)

    def read_recipe(self) -> tuple[Recipe, tuple[str, ...]]:
        """The recipe and the class names."""
        try:
            text = read_text(self.recipe_file)
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{self.path} holds no run (no readable recipe.json); give a run folder") from None
        try:
            return recipe_from_json(text, str(self.recipe_file)), self.read_data()[1]
        except BadInput as error:
            line = str(error) if str(self.recipe_file) in str(error) else f"{self.recipe_file}: {error}"
            raise BadInput(f"{line}; restore what the run wrote and its plugins, or choose another out") from None

    def check_recipe_file(self) -> None:
        """Refuse a recipe.json that is not as the run wrote it; `resume` instead compares it with the checkpoint."""
        if not is_as_written(parse_json(read_text(self.recipe_file))):
            raise BadInput(
                f"{self.recipe_file} differs from its digest: it was changed or is damaged; restore it, or if you "
                'changed it on purpose, remove its last line, "digest"'
            )

    @property
    def content(self) -> dict[str, Any]:
        """What recipe.json holds; empty if it is missing or damaged."""
        return read_json(self.recipe_file)

    def read(self, key: str, default: T) -> T:
        """A value in recipe.json: run, plugins, versions; the default if it is missing or damaged."""
        value = self.content.get(key)
        return value if isinstance(value, type(default)) else default

    def read_init(self) -> dict[str, str] | None:
        """Where the run's weights came from (`from`) and their digest; None if it started from random ones."""
        init = self.read("init", dict[str, Any]())
        return init if all(isinstance(init.get(key), str) for key in ("from", "digest")) else None

    def read_data(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The description of the data in recipe.json, and the class names."""
        content = parse_json(read_text(self.recipe_file))
        data, classes = content.get("data") or {}, content.get("classes") or []
        if not isinstance(data, dict) or not isinstance(classes, list):
            raise BadInput(f"{self.recipe_file}: data or classes are damaged; restore the file that the run wrote")
        return data, tuple(map(str, classes))

    # --- the log and results ------------------------------------------------------------------------------------------

    def keep_metrics_until(self, step: int) -> None:
        """Drop rows after `step`, because those steps will be repeated, and lines that are no rows."""
        if self.metrics_file.exists():
            rows = [json.dumps(row) + "\n" for row in self.metrics() if row["step"] <= step]
            write_text(self.metrics_file, "".join(rows))

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; empty if there is none."""
        rows, damage = read_rows(self.metrics_file) if self.metrics_file.exists() else ([], "")
        if damage:
            warn(f"{self.metrics_file}: {damage}")
        return rows

    def describe_early_end(self, recipe: Recipe) -> str:
        """Where the log of an unfinished run ends; empty if it is finished, or without a log: encoders are copied."""
        rows, epochs = self.metrics(), recipe.train.epochs
        if not rows and self.metrics_file.exists():  # every epoch ends with a row
            return f"its log {self.metrics_file.name} is empty"
        final_kinds = ("monitor",) if recipe.train.monitor_every else ("monitor", "train")
        is_done = all(row["epoch"] >= epochs - 1 and row["kind"] in final_kinds for row in rows[-1:])
        return "" if is_done else f"its log ends in epoch {rows[-1]['epoch'] + 1} of {epochs}"

    def compare_with_start(self) -> str:
        """That the weights of `init` were better on the held-out images than the last ones; empty if they were not."""
        init, rows = self.read_init(), [row for row in self.metrics() if isinstance(row.get("linear"), float)]
        by_kind = {row["kind"]: row for row in rows}  # the last of each
        if init is None or not {"start", "monitor"} <= by_kind.keys():
            return ""
        start, last = by_kind["start"], by_kind["monitor"]
        if last["linear"] >= start["linear"]:
            return ""
        before, after = ("{:.1f}% [{:.1f}, {:.1f}]".format(r["linear"], *r["linear_interval"]) for r in (start, last))
        return (
            f"{self.path} is worse than its start: linear accuracy {after}, before training {before}; to use the "
            f"start: supancl predict {shlex.quote(init['from'])}"
        )

    def check_evaluations_writable(self) -> None:
        """Refuse a run folder that cannot be written, before anything is measured."""
        check_no_link(self.evaluations)
        Output(self.evaluations, setting="run", replaces=Path.is_dir).check()

    def write_evaluation(self, name: str, result: dict[str, Any]) -> Path:
        """Write evaluate/NAME.json."""
        self.check_evaluations_writable()
        make_inner_folder(self.evaluations)
        remove_left_over_files(self.evaluations)
        path = self.evaluations / f"{name}.json"
        write_sealed_json(path, result)
        return path


def name_run(recipe: Recipe, classes: tuple[str, ...], data: Mapping[str, object]) -> str:
    """The name that the files of a run share: a digest of its settings and data."""
    return content_digest([fixed_settings(recipe), classes, data.get("fingerprint"), data.get("content")])[:16]


def next_folder(recipe_name: str, parent: Path = Path("runs")) -> Path:
    """runs/RECIPE-NNN with the next free number."""
    pattern = re.compile(re.escape(recipe_name) + r"-(\d+)$")
    used_numbers = [int(m[1]) for p in parent.glob(f"{recipe_name}-*") if (m := pattern.match(p.name))]
    return parent / f"{recipe_name}-{max(used_numbers, default=0) + 1:03d}"


# --- whether a run's data are still those that it began with ----------------------------------------------------------


def check_same_data(folder: RunFolder, data: Data, way_out: str = RESTORE, prefix: str = "") -> None:
    """Refuse data that have changed since the run began: order, labels and held-out images depend on them."""
    saved, classes = folder.read_data()
    changed = f"{prefix}the data have changed since the run began"
    for key in ("classes", "train", "labelled", "held_out"):
        now = data.summary[key]
        if key in saved and saved[key] != now:
            raise BadInput(f"{changed}: {key.replace('_', ' ')} {now}, was {saved[key]}; {way_out}")
    if classes != data.classes or saved.get("fingerprint", "") not in ("", data.summary["fingerprint"]):
        raise BadInput(f"{changed}: other class names, files or labels; {way_out}")


def check_same_content(folder: RunFolder, data: Data, way_out: str = RESTORE) -> list[str]:
    """Refuse images that were replaced under the same names since the run began; returns warnings.

    Only the content counts: data may have been moved or copied.
    """
    saved, current = folder.read_data()[0].get("content"), data.content
    if saved is None or current is None:
        return [f"{folder.recipe_file} has no checksum of the images, so images that were replaced would go unnoticed"]
    if saved == current.digest:
        return []
    changed = "the content of the images has changed since the run began"
    decoder, this_decoder = folder.read("versions", dict[str, str]()).get("pillow"), versions().get("pillow")
    if decoder != this_decoder and current.kind == "pixels":
        return [f"{changed}; that may be pillow, which was {decoder} and is {this_decoder}"]
    raise BadInput(f"{changed}; {way_out}")


# --- which runs there are ---------------------------------------------------------------------------------------------


def find_runs(folder: Path) -> Iterator[Path]:
    """Every run folder below this one, and the folder itself if it is a run; links and hidden folders are left out."""
    for path, folders, files in os.walk(folder):
        has_remains = "metrics.jsonl" in files or any((Path(path) / "checkpoints").glob("step-*.pt"))
        if "recipe.json" in files or "detect.json" in files or has_remains:
            yield Path(path)
            folders[:] = [name for name in folders if name not in INNER_FOLDERS]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
