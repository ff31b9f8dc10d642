"""`supancl.extend_run`: a finished run is trained for longer, with its source, other data, or its arrays again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supancl.api.pretraining import DataArgument, as_sources, open_saved
from supancl.reporter import Reporter
from supancl.training import extending
from supancl.training.run import Run


def extend_run(
    run: Path | str,
    epochs: int,
    out: Path | str | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    data: DataArgument | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Continue a finished run to `epochs` in a new folder; `run` itself is only read.

    Weights, target branch, optimizer, pool and random state are those of the run's last checkpoint. The learning rate
    starts again where a run of `epochs` would be by then, and falls to zero by a cosine; `schedule.restart_rate` in
    `changes` is another part of the peak. Other settings stay, except those that may also change on resume. `data` are
    the run's, as for `pretrain`: give arrays again, which a run does not keep, or the place that its source moved to.
    """
    if (sources := as_sources(data)) is not None:
        data, changes = None, {"data.source": sources[0], "data.joined": tuple(sources[1:]), **(changes or {})}
    opened = open_saved(run, data, {})[1]
    return extending.extend_run(run, epochs, out, changes=changes, data=opened, reporter=reporter)
