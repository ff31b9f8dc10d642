"""torchrun with the command line's ranks forked instead of started anew, so that a restart does not import torch again.

python -m tests.faults.agent MARKS TORCHRUN-FLAGS... -m supancl.cli COMMAND...: each rank first writes its process
number to MARKS/RESTART-RANK.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import sklearn.datasets
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

import supancl.cli.commands
import supancl.training.start
from supancl.cli import main

assert sklearn.datasets, supancl.cli.commands  # imported here, once, rather than by each rank


def rank(marks: str, words: list[str]) -> None:
    mark = Path(marks) / f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
    mark.with_suffix(".new").write_text(str(os.getpid()))
    mark.with_suffix(".new").rename(mark)
    sys.exit(main(words))


if __name__ == "__main__":
    config, _, words = config_from_args(parse_args(sys.argv[2:]))
    elastic_launch(replace(config, start_method="fork"), rank)(sys.argv[1], words[words.index("supancl.cli") + 1 :])
