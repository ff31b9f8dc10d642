"""The folder of a run: its files, and who may write to it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from supancl.config import parse_json, to_json
from supancl.data.opening import absolute_source
from supancl.errors import BadInput
from supancl.files import (
    check_writable,
    hold_lock,
    remove_left_over_files,
    why_unwritable,
    write_json,
    write_text,
)
from supancl.recipes import NotRegistered, Recipe, recipe_from_json
from supancl.recipes.plugins import required_plugins
from supancl.weights.provenance import commit, versions

COMMAND_BY_FILE = {
    "recipe.json": "pretrain",
    "detect.json": "detect train",
}  # the file that a run begins with -> its command


class RunFolder:
    """recipe.json, metrics.jsonl, checkpoints/, encoder.safetensors, projector.safetensors, tensorboard/,
    evaluate/."""

    REQUIRED_ROW_FIELDS: ClassVar[dict[str, type]] = {
        "kind": str,
        "step": int,
        "epoch": int,
    }  # every row of metrics.jsonl

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.encoder = path / "encoder.safetensors"
        self.projector = path / "projector.safetensors"
        self.recipe_file = path / "recipe.json"
        self.metrics_file = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.evaluations = path / "evaluate"
        self.created = False  # whether create() made the folder: then it is removed if the run never starts

    @property
    def has_run(self) -> bool:
        return self.recipe_file.exists()

    @property
    def leftover_files(self) -> list[Path]:
        """Files of a run whose recipe.json is missing: it cannot resume and is not overwritten."""
        files = [*self.checkpoints.glob("step-*.pt"), self.encoder, self.metrics_file]
        return [] if self.has_run else [file for file in files if file.exists()]

    def check_place(self) -> None:
        """Refuse a folder that cannot be written, without creating anything."""
        check_writable(self.path)

    def check_free(self, resume: bool) -> None:
        """Refuse a folder that holds a run or remains of one: its log and checkpoints would be mixed with ours."""
        for file, command in COMMAND_BY_FILE.items():
            if file != self.recipe_file.name and (self.path / file).exists():
                raise BadInput(f"{self.path} holds a run of supancl {command}; choose another --out")
        if self.has_run and not resume:
            raise BadInput(f"{self.path} already holds a run; continue it with --resume, or choose another --out")
        runs_below = [] if self.has_run else sorted(self.path.glob("*/recipe.json"))
        if runs_below:
            advice = f"choose another --out: {self.path / 'NAME'}"
            if resume:
                advice = f"continue one of them: --out {runs_below[0].parent}"
            raise BadInput(
                f"{self.path} is a folder of runs, such as {runs_below[0].parent.name}, and not a run; {advice}"
            )
        if self.leftover_files:
            raise BadInput(
                f"{self.path} holds {self.leftover_files[0].relative_to(self.path)} of a run but no "
                f"{self.recipe_file.name}; restore that and continue with --resume, or choose another "
                "--out"
            )

    def create(self) -> None:
        try:
            try:
                self.path.mkdir(parents=True)
                self.created = True
            except FileExistsError:
                self.created = False
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot write to {self.path} ({error.strerror}); choose another --out") from None
        check_writable(self.path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one writer at a time; the lock ends with the process, so a killed run never blocks the next."""

        def refuse(owner: str) -> None:
            raise BadInput(f"{self.path} is in use by process {owner}; wait for it, stop it, or choose another --out")

        with hold_lock(self.path / ".lock", refuse):
            try:
                yield
            finally:
                if not self.has_run:
                    self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):  # a folder that is not empty is kept
            self.checkpoints.rmdir()
            (self.path / ".lock").unlink()
            if self.created:
                self.path.rmdir()

    def remove_temporary_files(self) -> None:
        """Remove half-written files of a killed run; the caller holds the lock."""
        for folder in (self.path, self.checkpoints):
            remove_left_over_files(folder, min_age=0)
        remove_left_over_files(self.evaluations)  # evaluations are written without the lock

    def write_recipe(self, recipe: Recipe, classes: tuple[str, ...], data: dict[str, object]) -> None:
        # an absolute path works from any folder
        settings = replace(recipe, data=replace(recipe.data, source=absolute_source(recipe.data.source)))
        content = {
            "recipe": to_json(settings),
            "classes": list(classes),
            "data": data,
            "versions": versions(),
            "commit": commit(),
        }
        if plugins := required_plugins(recipe):
            content["plugins"] = plugins
        write_json(self.recipe_file, content)

    def record_setting(self, recipe: Recipe, section: str, name: str) -> None:
        """Write one setting that changed on resume into recipe.json; everything else is kept."""
        content, value = parse_json(self.recipe_file.read_text()), getattr(getattr(recipe, section), name)
        settings, key = content["recipe"][section], f"{section}.{name}"
        if name in settings and settings[name] == value:
            return
        settings[name] = value
        if key in recipe.sources:  # absent if the setting is newer than the file
            content["recipe"].setdefault("sources", {})[key] = recipe.sources[key]
        write_json(self.recipe_file, content)

    def read_recipe(self) -> tuple[Recipe, tuple[str, ...]]:
        try:
            text = self.recipe_file.read_text()
        except (OSError, UnicodeDecodeError):
            raise BadInput(f"{self.path} holds no run (no readable recipe.json); give a run folder") from None
        try:
            recipe = recipe_from_json(text, str(self.recipe_file))
        except NotRegistered as error:
            raise NotRegistered(f"{self.recipe_file}: {error}") from None
        except BadInput as error:
            line = str(error) if str(self.recipe_file) in str(error) else f"{self.recipe_file}: {error}"
            raise BadInput(f"{line}; restore the file that the run wrote, or choose another --out") from None
        return recipe, self.read_data()[1]

    def read_plugins(self) -> list[str]:
        """The plugin files that the run used; empty if it used none or there is no recipe.json."""
        try:
            files = parse_json(self.recipe_file.read_text()).get("plugins")
            return [str(file) for file in files] if isinstance(files, list) else []
        except (OSError, ValueError, AttributeError):
            return []

    def read_data(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The description of the data in recipe.json, and the class names."""
        content = parse_json(self.recipe_file.read_text())
        data, classes = content.get("data") or {}, content.get("classes") or []
        if not isinstance(data, dict) or not isinstance(classes, list):
            wrong = "classes is not a list" if isinstance(data, dict) else "data is not an object"
            raise BadInput(f"{self.recipe_file}: {wrong}; restore the file that the run wrote, or choose another --out")
        return data, tuple(map(str, classes))

    def keep_metrics_until(self, step: int) -> None:
        """Drop rows after `step`: those steps will be repeated."""
        if not self.metrics_file.exists():
            return
        write_text(self.metrics_file, "".join(line + "\n" for line, row in self._read_rows() if row["step"] <= step))

    def metrics(self) -> list[dict[str, Any]]:
        return [row for _, row in self._read_rows()] if self.metrics_file.exists() else []

    def _read_rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines of metrics.jsonl that are complete rows; a killed run may leave broken ones."""
        for line in self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = parse_json(line)
            except ValueError:
                continue
            if isinstance(row, dict) and all(
                isinstance(row.get(key), kind) for key, kind in self.REQUIRED_ROW_FIELDS.items()
            ):
                yield line, row

    def describe_early_end(self, recipe: Recipe) -> str:
        """Where the log of an unfinished run ends.

        Empty if the log ends with the last epoch, or if there is no log: encoders are often copied without one.
        """
        last, epochs = self.metrics()[-1:], recipe.train.epochs
        final_kinds = ("monitor",) if recipe.train.monitor_every else ("monitor", "train")
        if all(row["epoch"] >= epochs - 1 and row["kind"] in final_kinds for row in last):
            return ""
        return f"its log ends in epoch {last[0]['epoch'] + 1} of {epochs}"

    def check_evaluations_writable(self) -> None:
        """Refuse a run folder that cannot be written, before anything is measured."""
        if why := why_unwritable(self.evaluations):
            raise BadInput(f"cannot write to {self.path} ({why}); evaluate a copy of it")

    def write_evaluation(self, name: str, result: dict[str, Any]) -> Path:
        try:
            self.evaluations.mkdir(exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot write to {self.path} ({error.strerror}); evaluate a copy of it") from None
        remove_left_over_files(self.evaluations)
        path = self.evaluations / f"{name}.json"
        write_json(path, result)
        return path


def next_folder(recipe_name: str, parent: Path = Path("runs")) -> Path:
    """runs/RECIPE-NNN with the next free number."""
    pattern = re.compile(re.escape(recipe_name) + r"-(\d+)$")
    used_numbers = [int(m[1]) for p in parent.glob(f"{recipe_name}-*") if (m := pattern.match(p.name))]
    return parent / f"{recipe_name}-{max(used_numbers, default=0) + 1:03d}"
