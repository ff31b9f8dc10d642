"""The folder of a run: its files, and who may write to it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from supancl.config import parse_json, to_json
from supancl.data.content import Content, read_content
from supancl.data.opening import absolute_source, is_same_source
from supancl.data.sources.tars import find_tars, is_tar
from supancl.data.splits import Data
from supancl.errors import BadInput, program_name
from supancl.files import (
    check_no_link,
    check_writable,
    hold_lock,
    is_as_written,
    make_folder,
    make_inner_folder,
    read_json,
    read_text,
    remove_left_over_files,
    why_unwritable,
    write_bytes,
    write_sealed_json,
    write_text,
)
from supancl.recipes import Recipe, recipe_from_json
from supancl.recipes.plugins import required_plugins
from supancl.recipes.recipe import fixed_settings
from supancl.reporter import report_warning
from supancl.runs.log import read_rows
from supancl.runs.provenance import commit, content_digest, versions

RESTORE = "restore them, or start another run"

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
        self.created = False  # whether create() made the folder: then it is removed if the run never starts

    @property
    def has_run(self) -> bool:
        return self.recipe_file.exists()

    @property
    def leftover_files(self) -> list[Path]:
        """Files of a run whose recipe.json is missing: it cannot resume and is not overwritten."""
        files = [*self.checkpoint_files(), self.encoder, self.metrics_file]
        return [] if self.has_run else [file for file in files if file.exists()]

    def checkpoint_files(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return sorted(self.checkpoints.glob("step-*.pt"))

    def check_links(self) -> None:
        """Refuse links in the place of what a run writes to: a received folder could make it write anywhere."""
        for path in (self.lock_file, self.checkpoints, self.metrics_file, self.tensorboard, self.evaluations):
            check_no_link(path)

    def check_free(self, resume: bool) -> None:
        """Refuse a folder that cannot be written, or holds a run or remains of one: its files would be mixed with ours.

        Nothing is created.
        """
        check_writable(self.path)
        self.check_links()
        if self.has_run and not resume:
            raise BadInput(f"{self.path} already holds a run; continue it with resume, or choose another out")
        others = [*self.leftover_files, *({self.path / "recipe.json", self.path / "detect.json"} - {self.recipe_file})]
        for file in others:
            if file.exists():
                raise BadInput(
                    f"{self.path} holds {file.relative_to(self.path)} of a run and no {self.recipe_file.name}; restore "
                    "that and continue with resume, or choose another out"
                )

    def create(self) -> None:
        """Make the folder; `created` says whether this process did, not another run at the same time."""
        self.check_links()
        check_writable(self.path)
        make_folder(self.path.parent)
        try:
            self.path.mkdir()
            self.created = True
        except FileExistsError:
            self.created = False
        except OSError as error:
            raise BadInput(f"cannot write to {self.path} ({error.strerror}); choose another out") from None
        make_folder(self.checkpoints)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one writer at a time; the lock ends with the process, so a killed run never blocks the next."""

        def refuse(owner: str) -> None:
            raise BadInput(f"{self.path} is in use by process {owner}; wait for it, stop it, or choose another out")

        with hold_lock(self.lock_file, refuse):
            try:
                yield
            finally:
                if not self.has_run:
                    self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):  # a folder that is not empty is kept
            self.checkpoints.rmdir()
            self.lock_file.unlink()
            if self.created:
                self.path.rmdir()

    def remove_temporary_files(self) -> None:
        """Remove half-written files of a killed run; the caller holds the lock."""
        for folder in (self.path, self.checkpoints):
            remove_left_over_files(folder, min_age=0)
        remove_left_over_files(self.evaluations)  # evaluations are written without the lock

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
        content |= {key: value for key, value in (about or {}).items() if value}
        write_sealed_json(self.recipe_file, content)

    def write_content(self, content: Content | None) -> None:
        """Write a checksum of each image, for `--resume` to name those that have changed."""
        if content is not None:
            write_bytes(self.content_file, content.to_bytes())

    def record_setting(self, recipe: Recipe, section: str, name: str) -> None:
        """Write one setting that changed on resume into recipe.json; everything else is kept."""
        content = parse_json(read_text(self.recipe_file))
        value = to_json(getattr(getattr(recipe, section), name))
        settings, key = content["recipe"][section], f"{section}.{name}"
        if name in settings and settings[name] == value:
            return
        settings[name] = value
        if key in recipe.sources:  # absent if the setting is newer than the file
            content["recipe"].setdefault("sources", {})[key] = recipe.sources[key]
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
            raise BadInput(f"{line}; restore what the run wrote (and its plugins), or choose another out") from None

    def check_recipe_file(self) -> None:
        """Refuse a recipe.json that is not as the run wrote it; `--resume` instead compares it with the checkpoint."""
        if not is_as_written(parse_json(read_text(self.recipe_file))):
            raise BadInput(
                f"{self.recipe_file} differs from its digest: it was changed or is damaged; restore it, or if you "
                'changed it on purpose, remove its last line, "digest"'
            )

    def read_run_name(self) -> str:
        """The name that the files of this run share, a digest of settings and data; empty if it is not known."""
        return self._told("run", "")

    def read_plugins(self) -> list[str]:
        """The plugin files that the run used; empty if it used none or there is no recipe.json."""
        return list(map(str, self._told("plugins", list[Any]())))

    def read_versions(self) -> dict[str, str]:
        """The versions of Python and of packages that the run began with."""
        return self._told("versions", dict[str, str]())

    def read_short_side(self) -> int | None:
        """The median short side of the training images; None if it is not known."""
        side = self._told("data", dict[str, Any]()).get("short_side")
        return side if isinstance(side, int) else None

    def read_init(self) -> dict[str, str] | None:
        """Where the run's weights came from (`from`) and their digest; None if it started from random ones."""
        init = self._told("init", dict[str, Any]())
        return init if all(isinstance(init.get(key), str) for key in ("from", "digest")) else None

    def read_data(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The description of the data in recipe.json, and the class names."""
        content = parse_json(read_text(self.recipe_file))
        data, classes = content.get("data") or {}, content.get("classes") or []
        if not isinstance(data, dict) or not isinstance(classes, list):
            raise BadInput(f"{self.recipe_file}: data or classes are damaged; restore the file that the run wrote")
        return data, tuple(map(str, classes))

    def _told(self, key: str, default: T) -> T:
        """A value in recipe.json; the default if it is missing or of another type, or the file is damaged."""
        value = read_json(self.recipe_file).get(key)
        return value if isinstance(value, type(default)) else default

    def keep_metrics_until(self, step: int) -> list[str]:
        """Drop rows after `step`, because those steps will be repeated, and lines that are no rows; returns remarks."""
        if not self.metrics_file.exists():
            return []
        rows, damage = read_rows(self.metrics_file)
        write_text(self.metrics_file, "".join(f"{json.dumps(row)}\n" for row in rows if row["step"] <= step))
        return [f"{self.metrics_file}: {damage}"] if damage else []

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; empty if there is none."""
        rows, damage = read_rows(self.metrics_file) if self.metrics_file.exists() else ([], "")
        if damage:
            report_warning(f"{self.metrics_file}: {damage}")
        return rows

    def describe_early_end(self, recipe: Recipe) -> str:
        """Where the log of an unfinished run ends.

        Empty if the log ends with the last epoch, or if there is no log: encoders are often copied without one.
        """
        rows, epochs = self.metrics(), recipe.train.epochs
        if not rows and self.metrics_file.exists():  # every epoch ends with a row
            return f"its log {self.metrics_file.name} is empty"
        last = rows[-1:]
        final_kinds = ("monitor",) if recipe.train.monitor_every else ("monitor", "train")
        if all(row["epoch"] >= epochs - 1 and row["kind"] in final_kinds for row in last):
            return ""
        return f"its log ends in epoch {last[0]['epoch'] + 1} of {epochs}"

    def compare_with_start(self) -> str:
        """That the weights of --init were better on the held-out images than the last ones; empty if they were not."""
        init = self.read_init()
        rows = [row for row in self.metrics() if isinstance(row.get("linear"), float)] if init else []
        by_kind = {row["kind"]: row for row in rows}  # the last of each
        start, last = by_kind.get("start"), by_kind.get("monitor")
        if init is None or start is None or last is None or last["linear"] >= start["linear"]:
            return ""
        before, after = (
            "{:.1f}% [{:.1f}, {:.1f}]".format(row["linear"], *row["linear_interval"]) for row in (start, last)
        )
        source = read_json(self.recipe_file)["recipe"]["data"]["source"]
        command = f"{program_name()} predict {shlex.join([init['from'], '--data', source])}"
        return (
            f"{self.path} is worse than its start: a linear classifier is right for {after} of {last['knn_queries']} "
            f"held-out images, and was for {before} before training; to use the start: {command}"
        )

    def check_evaluations_writable(self) -> None:
        """Refuse a run folder that cannot be written, before anything is measured."""
        check_no_link(self.evaluations)
        if why := why_unwritable(self.evaluations):
            raise BadInput(f"cannot write to {self.path} ({why}); evaluate a copy of it")

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


# --- whether a run's data are still those that it was begun with ------------------------------------------------------


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


def describe_content(content: Content | None) -> dict[str, object]:
    """What recipe.json says of the content of the images, and of how it was taken."""
    if content is None:
        return {}
    how = {"pixels": "every pixel", "shards": "size of each shard and bytes sampled from it"}[content.kind]
    return {"content": content.digest, "content_of": how}


def check_same_content(folder: RunFolder, data: Data, way_out: str = RESTORE) -> list[str]:
    """Refuse images that were replaced under the same names since the run began; returns remarks.

    Only the content counts: data may have been moved or copied.
    """
    saved, current = folder.read_data()[0].get("content"), data.content
    if saved is None or current is None:
        return [f"{folder.recipe_file} has no checksum of the images, so images that were replaced would go unnoticed"]
    before = read_content(folder.content_file)
    if saved == current.digest:
        is_older = current.has_other_stamps(before)
        return [
            "shards have another time or inode than when the run began; their sampled bytes are the same"
        ] * is_older
    names = current.changed_names(before)
    changed = f"the content of the images has changed since the run began: {len(names)}, such as {names[:1]}"
    decoder, this_decoder = folder.read_versions().get("pillow"), versions().get("pillow")
    if decoder != this_decoder and current.kind == "pixels":
        return [f"{changed}; that may be pillow, which was {decoder} and is {this_decoder}"]
    raise BadInput(f"{changed}; {way_out}")


def is_same_or_moved(requested: Any, saved: Any) -> bool:
    """Whether a run may continue with this source: the saved one, or any if the saved one no longer exists.

    Of several joined sources, each is compared with the saved one in its place. Once the data are read,
    `check_same_data` compares file names and labels.
    """
    if not isinstance(requested, str):
        return len(requested) == len(saved or ()) and all(map(is_same_or_moved, requested, saved or ()))
    return is_same_source(requested, saved) or _is_gone(saved)


def _is_gone(source: str) -> bool:
    """Whether a source saved with an absolute path (also NAME@ROOT and hf:PATH) no longer exists."""
    root = source if Path(source).is_absolute() else source.partition("@")[2] or source.removeprefix("hf:")
    if not Path(root).is_absolute() or Path(root).exists():
        return False
    try:
        return not (is_tar(root) and find_tars(root))  # {000..009}.tar is a pattern
    except BadInput:
        return True
