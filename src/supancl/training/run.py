"""A run in Python: what `pretrain` returns and `load` reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import supancl
from supancl.config import parse_json
from supancl.core.encoders import Encoder
from supancl.errors import BadInput, plural
from supancl.files import is_as_written, read_text, reason
from supancl.recipes import Recipe
from supancl.runs.encoder_file import load_encoder
from supancl.runs.folder import RunFolder
from supancl.runs.log import has_collapsed, read_end

if TYPE_CHECKING:
    from supancl.probes import Features

LINE = 80  # characters that repr() takes at most


@dataclass(frozen=True, repr=False)
class Run:
    """A pretraining: its folder, the trained encoder in eval mode, and the logged rows."""

    folder: Path
    encoder: Encoder
    metrics: list[dict[str, Any]]
    collapsed: bool

    @property
    def recipe(self) -> Recipe:
        """Every setting of the run, as recipe.json has it."""
        return RunFolder(self.folder).read_recipe()[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels' numbers."""
        return RunFolder(self.folder).read_recipe()[1]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """What `supancl evaluate` has written for this run by now, by name: {"knn": {"accuracy": 93.1, ...}, ...}."""
        return read_results(self.folder)

    def evaluate(self, protocol: str | None = None, **settings: Any) -> dict[str, Any]:
        """`supancl.evaluate` of this run: k-NN and linear accuracy, or one protocol."""
        return supancl.evaluate(self, protocol, **settings)

    def predict(self, data: str | Path | None = None, **settings: Any) -> dict[str, Any]:
        """`supancl.predict` with this run: a table of labels for images."""
        return supancl.predict(self, data=data, **settings)

    def embed(self, data: Any, **settings: Any) -> Features:
        """`supancl.embed` with this run: the features of images."""
        return supancl.embed(self, data, **settings)

    def export(self, out: str | Path, **settings: Any) -> dict[str, Any]:
        """`supancl.export` of this run: its encoder for other libraries."""
        return supancl.export(self, out, **settings)

    def report(self, **settings: Any) -> dict[str, Any]:
        """`supancl.report` of this run: one page."""
        return supancl.report(self, **settings)

    def summary(self) -> dict[str, Any]:
        """What `--json` writes of a run."""
        last = {key: value for row in self.metrics[-2:] for key, value in row.items() if key != "kind"}
        return {"run": str(self.folder), "collapsed": self.collapsed, "last": last}

    def __repr__(self) -> str:
        rest = f": {self._describe()})"
        folder = str(self.folder)
        room = max(LINE - len("Run(") - len(rest), 20)
        return f"Run({folder if len(folder) <= room else '...' + folder[3 - room :]}{rest}"

    def _describe(self) -> str:
        """The recipe, how far the run is, and its last accuracy."""
        try:
            pieces = [self.recipe.name]
        except (BadInput, OSError, ValueError):  # the folder may be gone
            pieces = [self.encoder.spec.name]
        last = {key: value for row in self.metrics for key, value in row.items() if value is not None}
        if "epoch" in last:
            pieces.append(plural(last["epoch"] + 1, "epoch"))
        if "knn" in last:
            pieces.append(f"k-NN {last['knn']:.1f}%")
        elif "knn_map" in last:
            pieces.append(f"k-NN mAP {last['knn_map']:.1f}%")
        return ", ".join([*pieces, *["collapsed"] * self.collapsed])


def read_result(file: Path) -> dict[str, Any]:
    """A result of an evaluation, compared with its digest."""
    way_out = "evaluate the run again, or remove the file"
    try:
        content = parse_json(read_text(file))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read ({reason(error)}); {way_out}") from None
    if not isinstance(content, dict) or not is_as_written(content):
        raise BadInput(f"{file} is damaged or was changed, by its digest; {way_out}")
    return {key: value for key, value in content.items() if key != "digest"}


def read_results(run: Path) -> dict[str, dict[str, Any]]:
    """The results in a run folder by the names of their files."""
    return {file.stem: read_result(file) for file in sorted(RunFolder(run).evaluations.glob("*.json"))}


def load(path: Path | str) -> Run:
    """Read a run folder: its encoder, as of the last epoch that was completed, its log, recipe and results.

    An encoder without a run is opened with `load_encoder` or, from other libraries, with `open_encoder`.

    >>> from supancl import pretrain
    >>> _ = pretrain("digits.supsiam", out="runs/digits", epochs=1, limit=128)
    >>> run = load("runs/digits")
    >>> run.encoder.width, run.recipe.name, run.classes[:3], run.results
    (64, 'digits.supsiam', ('0', '1', '2'), {})
    """
    folder = RunFolder(Path(path))
    if not folder.has_run and (folder.path.is_file() or folder.encoder.exists()):
        raise BadInput(f"{path} holds an encoder but no run; open it with supancl.load_encoder({str(path)!r})")
    encoder = load_encoder(folder.path)  # explains a path that does not exist
    if not folder.has_run:
        raise BadInput(f"{path} holds no run (no recipe.json); give a run folder")
    folder.check_recipe_file()
    return Run(folder.path, encoder, folder.metrics(), bool(has_collapsed(folder)))


def read_finished_run(out: Path | str | None) -> Run | None:
    """The run in this folder if it is finished and none of its checkpoints was kept, else None."""
    folder = RunFolder(Path(out or ""))
    if out is None or not folder.has_run or not folder.end_file.exists() or folder.checkpoint_files():
        return None
    if (end := read_end(folder)) is None:  # to start again at step 0 would overwrite the encoder
        raise BadInput(
            f"{folder.end_file} is damaged or of another run, and there is no checkpoint; restore it, or remove it to "
            "start again at step 0"
        )
    return Run(folder.path, load_encoder(folder.path), folder.metrics(), end.collapsed)
