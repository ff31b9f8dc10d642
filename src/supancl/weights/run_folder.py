"""The folder of a run: who may write in it, and what lies where."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, ClassVar

from supancl.config import to_json
from supancl.data.splits import absolute_source
from supancl.errors import BadInput
from supancl.files import check_place, held, unwritable, write_text
from supancl.recipes import NotRegistered, Recipe, recipe_from_json
from supancl.recipes.plugins import plugins_of

MADE_BY = {"recipe.json": "pretrain", "detect.json": "detect train"}  # the file that a run begins with -> its command
PACKAGES = ("torch", "torchvision", "timm", "numpy", "safetensors")


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
        check_place(self.path)

    def check_free(self, resume: bool) -> None:
        """Refuse a folder that holds a run, or what is left of one: its log and checkpoints would be taken for ours."""
        for file, command in MADE_BY.items():
            if file != self.recipe_file.name and (self.path / file).exists():
                raise BadInput(f"{self.path} holds a run of supancl {command}; choose another --out")
        if self.holds_run and not resume:
            raise BadInput(f"{self.path} already holds a run; continue it with --resume, or choose another --out")
        below = [] if self.holds_run else sorted(self.path.glob("*/recipe.json"))
        if below:
            way = (
                f"continue one of them: --out {below[0].parent}"
                if resume
                else (f"choose another --out: {self.path / 'NAME'}")
            )
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

        with held(self.path / ".lock", refuse):
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
        write_text(self.recipe_file, _json(content))

    def note_setting(self, recipe: Recipe, section: str, name: str) -> None:
        """Keep in recipe.json a setting that the run goes on with; what else it says is of the beginning, and stays."""
        content, value = json.loads(self.recipe_file.read_text()), getattr(getattr(recipe, section), name)
        kept, key = content["recipe"][section], f"{section}.{name}"
        if name in kept and kept[name] == value:
            return
        kept[name] = value
        if key in recipe.sources:  # not of one that was left open, in a file of before there was such a setting
            content["recipe"].setdefault("sources", {})[key] = recipe.sources[key]
        write_text(self.recipe_file, _json(content))

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
            told = str(error) if str(self.recipe_file) in str(error) else f"{self.recipe_file}: {error}"
            raise BadInput(f"{told}; bring back the file as the run wrote it, or choose another --out") from None
        return recipe, tuple(map(str, json.loads(text).get("classes") or ()))

    def read_plugins(self) -> list[str]:
        """The plugin files that the run was made with; none where there is no recipe.json, or no plugin."""
        try:
            return [str(file) for file in json.loads(self.recipe_file.read_text()).get("plugins") or ()]
        except (OSError, ValueError, AttributeError, RecursionError):
            return []

    def read_data(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What recipe.json says of the data, and the class names."""
        content = json.loads(self.recipe_file.read_text())
        return dict(content.get("data") or {}), tuple(map(str, content.get("classes") or ()))

    def keep_metrics_until(self, step: int) -> None:
        """Drop rows after `step`: the steps they tell of will be done again."""
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
        """Refuse a run that no result can be kept in: asked before anything is measured."""
        if why := unwritable(self.evaluations):
            raise BadInput(f"cannot write in {self.path} ({why}); judge a copy of it instead")

    def write_evaluation(self, name: str, result: dict[str, Any]) -> Path:
        try:
            self.evaluations.mkdir(exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot write in {self.path} ({error.strerror}); judge a copy of it instead") from None
        path = self.evaluations / f"{name}.json"
        write_text(path, _json(result))
        return path


class MetricsLog:
    """metrics.jsonl and TensorBoard, row by row."""

    def __init__(self, folder: RunFolder, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        self.file: IO[str] = open(folder.metrics_file, "a")  # noqa: SIM115 - closed by close()
        # TensorBoard forgets this step and those after it; the row of `resumed_at` itself stays
        forgotten = None if resumed_at is None else resumed_at + 1
        self.board = SummaryWriter(str(folder.tensorboard), purge_step=forgotten)

    def write(self, row: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps(jsonable(row)) + "\n")
            self.file.flush()
            for name, value in row.items():
                if isinstance(value, (int, float)) and name not in ("step", "epoch") and math.isfinite(value):
                    self.board.add_scalar(f"{row['kind']}/{name}", value, row["step"])
        except OSError as error:
            raise BadInput(
                f"{self.folder.metrics_file} cannot be written ({error.strerror}); make room, then continue "
                f"with --resume --out {self.folder.path}"
            ) from None

    def rewind(self, step: int) -> None:
        """Forget the rows after `step`, which will be written again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self.file.close()
        self.folder.keep_metrics_until(step)
        self.file = open(self.folder.metrics_file, "a")  # noqa: SIM115 - closed by close()
        # what a purge_step writes, in the same file: files of one second are not surely read in their order
        again = Event(step=step + 1, session_log=SessionLog(status=SessionLog.START))
        self.board._get_file_writer().add_event(again)

    def close(self) -> None:
        for end in (self.file.close, self.board.close):
            with contextlib.suppress(OSError):
                end()


class NoLog(MetricsLog):
    """For ranks that do not write."""

    def __init__(self) -> None: ...

    def write(self, row: dict[str, Any]) -> None: ...

    def rewind(self, step: int) -> None: ...

    def close(self) -> None: ...


def jsonable(value: Any) -> Any:
    """JSON has no NaN: what is not a number becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value


def next_folder(recipe_name: str, parent: Path = Path("runs")) -> Path:
    """runs/RECIPE-NNN with the next free number."""
    pattern = re.compile(re.escape(recipe_name) + r"-(\d+)$")
    taken = [int(m[1]) for p in parent.glob(f"{recipe_name}-*") if (m := pattern.match(p.name))]
    return parent / f"{recipe_name}-{max(taken, default=0) + 1:03d}"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("supancl", *PACKAGES):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str | None:
    """The commit of the source tree this runs from, where it runs from one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        asked = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None


def _json(content: Any) -> str:
    return json.dumps(jsonable(content), indent=2) + "\n"
