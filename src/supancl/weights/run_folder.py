"""The folder of a run: who may write in it, and what lies where."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from supancl.config import to_json
from supancl.data.opening import absolute_source
from supancl.errors import BadInput
from supancl.files import check_writable, hold_lock, why_unwritable, write_json, write_text
from supancl.recipes import NotRegistered, Recipe, recipe_from_json
from supancl.recipes.plugins import plugins_of
from supancl.weights.provenance import commit, versions

MADE_BY = {"recipe.json": "pretrain", "detect.json": "detect train"}  # the file that a run begins with -> its command


class RunFolder:
    """recipe.json, metrics.jsonl, checkpoints/, encoder.safetensors, projector.safetensors, tensorboard/,
    evaluate/."""

    row_has: ClassVar[dict[str, type]] = {"kind": str, "step": int, "epoch": int}  # every row of metrics.jsonl

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.encoder = path / "encoder.safetensors"
        self.projector = path / "projector.safetensors"
        self.recipe_file = path / "recipe.json"
        self.metrics_file = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.evaluations = path / "evaluate"
        self.made = False  # by create(), so that a run that never begins can leave nothing behind

    @property
    def holds_run(self) -> bool:
        return self.recipe_file.exists()

    @property
    def remains(self) -> list[Path]:
        """Parts of a run that lie here without its recipe.json: it cannot go on, and is not written over."""
        parts = [*self.checkpoints.glob("step-*.pt"), self.encoder, self.metrics_file]
        return [] if self.holds_run else [part for part in parts if part.exists()]

    def check_place(self) -> None:
        """Refuse a place that cannot be written in, without making anything."""
        check_writable(self.path)

    def check_free(self, resume: bool) -> None:
        """Refuse a folder that holds a run, or what is left of one: its log and checkpoints would be taken for ours."""
        for file, command in MADE_BY.items():
            if file != self.recipe_file.name and (self.path / file).exists():
                raise BadInput(f"{self.path} holds a run of supancl {command}; choose another --out")
        if self.holds_run and not resume:
            raise BadInput(f"{self.path} already holds a run; continue it with --resume, or choose another --out")
        below = [] if self.holds_run else sorted(self.path.glob("*/recipe.json"))
        if below:
            way = f"choose another --out: {self.path / 'NAME'}"
            if resume:
                way = f"continue one of them: --out {below[0].parent}"
            raise BadInput(f"{self.path} is a folder of runs, such as {below[0].parent.name}, and no run itself; {way}")
        if self.remains:
            raise BadInput(
                f"{self.path} holds {self.remains[0].relative_to(self.path)} of a run but no "
                f"{self.recipe_file.name}; bring that back and continue with --resume, or choose another "
                "--out"
            )

    def create(self) -> None:
        try:
            try:
                self.path.mkdir(parents=True)
                self.made = True
            except FileExistsError:
                self.made = False
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise BadInput(f"cannot write in {self.path} ({error.strerror}); choose another --out") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time; the lock goes with the process, so a killed run never blocks the next."""

        def refuse(owner: str) -> None:
            raise BadInput(f"{self.path} is in use by process {owner}; wait for it, stop it, or choose another --out")

        with hold_lock(self.path / ".lock", refuse):
            try:
                yield
            finally:
                if not self.holds_run:
                    self._unmake()

    def _unmake(self) -> None:
        with contextlib.suppress(OSError):  # a folder in which something lies stays
            self.checkpoints.rmdir()
            (self.path / ".lock").unlink()
            if self.made:
                self.path.rmdir()

    def tidy(self) -> None:
        """Remove what a run that was killed while it wrote has left half written; the lock is ours."""
        for left_over in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp")):
            left_over.unlink(missing_ok=True)

    def write_recipe(self, recipe: Recipe, classes: tuple[str, ...], data: dict[str, object]) -> None:
        # the data must be found again from another folder
        settings = replace(recipe, data=replace(recipe.data, source=absolute_source(recipe.data.source)))
        content = {
            "recipe": to_json(settings),
            "classes": list(classes),
            "data": data,
            "versions": versions(),
            "commit": commit(),
        }
        if plugins := plugins_of(recipe):
            content["plugins"] = plugins
        write_json(self.recipe_file, content)

    def note_setting(self, recipe: Recipe, section: str, name: str) -> None:
        """Write a setting that the run goes on with into recipe.json; everything else stays as the run began."""
        content, value = json.loads(self.recipe_file.read_text()), getattr(getattr(recipe, section), name)
        settings, key = content["recipe"][section], f"{section}.{name}"
        if name in settings and settings[name] == value:
            return
        settings[name] = value
        if key in recipe.sources:  # not of one that was left open, in a file of before there was such a setting
            content["recipe"].setdefault("sources", {})[key] = recipe.sources[key]
        write_json(self.recipe_file, content)

    def read_recipe(self) -> tuple[Recipe, tuple[str, ...]]:
        try:
            text = self.recipe_file.read_text()
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{self.path} holds no run (no readable recipe.json)") from None
        try:
            recipe = recipe_from_json(text, str(self.recipe_file))
        except NotRegistered as error:
            raise NotRegistered(f"{self.recipe_file}: {error}") from None
        except (BadInput, RecursionError) as error:
            line = str(error) if str(self.recipe_file) in str(error) else f"{self.recipe_file}: {error}"
            raise BadInput(f"{line}; bring back the file as the run wrote it, or choose another --out") from None
        return recipe, tuple(map(str, json.loads(text).get("classes") or ()))

    def read_plugins(self) -> list[str]:
        """The plugin files that the run was made with; none where there is no recipe.json, or no plugin."""
        try:
            listed = json.loads(self.recipe_file.read_text()).get("plugins")
            return [str(file) for file in listed] if isinstance(listed, list) else []
        except (OSError, ValueError, AttributeError, RecursionError):
            return []

    def read_data(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What recipe.json says of the data, and the class names."""
        content = json.loads(self.recipe_file.read_text())
        return dict(content.get("data") or {}), tuple(map(str, content.get("classes") or ()))

    def keep_metrics_until(self, step: int) -> None:
        """Drop rows after `step`: those steps will be done again."""
        if not self.metrics_file.exists():
            return
        write_text(self.metrics_file, "".join(line + "\n" for line, row in self._logged() if row["step"] <= step))

    def metrics(self) -> list[dict[str, Any]]:
        return [row for _, row in self._logged()] if self.metrics_file.exists() else []

    def _logged(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines of metrics.jsonl that are rows; what a killed run or a lost machine left of others is no row."""
        for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in self.row_has.items()):
                yield line, row

    def ends_early(self, recipe: Recipe) -> str:
        """How far the log goes of a run that was not trained to its end.

        Empty where it ends with the check of the last epoch, or there is none: encoders travel without.
        """
        last, epochs = self.metrics()[-1:], recipe.train.epochs
        closing = ("monitor",) if recipe.train.monitor_every else ("monitor", "train")
        if all(row["epoch"] >= epochs - 1 and row["kind"] in closing for row in last):
            return ""
        return f"its log ends in epoch {last[0]['epoch'] + 1} of {epochs}"

    def check_evaluations(self) -> None:
        """Refuse a run folder that cannot be written in, before anything is measured."""
        if why := why_unwritable(self.evaluations):
            raise BadInput(f"cannot write in {self.path} ({why}); judge a copy of it instead")

    def write_evaluation(self, name: str, result: dict[str, Any]) -> Path:
        try:
            self.evaluations.mkdir(exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot write in {self.path} ({error.strerror}); judge a copy of it instead") from None
        path = self.evaluations / f"{name}.json"
        write_json(path, result)
        return path


def next_folder(recipe_name: str, parent: Path = Path("runs")) -> Path:
    """runs/RECIPE-NNN with the next free number."""
    pattern = re.compile(re.escape(recipe_name) + r"-(\d+)$")
    taken = [int(m[1]) for p in parent.glob(f"{recipe_name}-*") if (m := pattern.match(p.name))]
    return parent / f"{recipe_name}-{max(taken, default=0) + 1:03d}"
