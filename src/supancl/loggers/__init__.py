"""Loggers: what a run writes to metrics.jsonl also goes to Weights & Biases or MLflow (docs/loggers.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec

from supancl.errors import BadInput, did_you_mean
from supancl.loggers.mlflow_logger import MlflowLogger
from supancl.loggers.run_logger import LoggedRun, RunLogger
from supancl.loggers.wandb_logger import WandbLogger
from supancl.reporter import Reporter

__all__ = ["LOGGERS", "LoggedRun", "MlflowLogger", "RunLogger", "WandbLogger", "open_loggers"]

LOGGERS: dict[str, type[RunLogger]] = {logger.name: logger for logger in (WandbLogger, MlflowLogger)}


def check_logger(name: str) -> None:
    """Refuse an unknown logger, and one whose package is missing. Nothing is imported."""
    if name == "tensorboard":
        raise BadInput("logger tensorboard: every run writes RUN/tensorboard already; leave it out")
    if name not in LOGGERS:
        raise BadInput(f"logger {name}: no such logger{did_you_mean(name, LOGGERS)}")
    if find_spec(name) is None:
        raise BadInput(f"logger {name}: the package {name} is not installed; pip install 'supancl[{name}]'")


def open_loggers(
    names: Iterable[str], reporter: Reporter | None = None, warn: Callable[[str], None] | None = None
) -> Reporter:
    """The reporter with these loggers in front of it; `warn` gets their warnings, without it the reporter does."""
    for name in dict.fromkeys(names):
        check_logger(name)
        reporter = LOGGERS[name](reporter, warn)
    return reporter or Reporter()
