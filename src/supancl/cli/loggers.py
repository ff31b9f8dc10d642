"""Where reports of training go: the terminal, the loggers of --logger, and the page of --report-every."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from supancl.cli.console import Terminal, print_warning
from supancl.export.loggers import open_loggers
from supancl.reporter import Reporter
from supancl.reports.live_report import LiveReport
from supancl.sweeps.runner import Sweep


def reporter_from_flags(args: argparse.Namespace, console: Console) -> Reporter:
    """The terminal, with the loggers of --logger and the page of --report-every in front of it."""
    reporter = open_loggers(args.logger, Terminal(console))
    return reporter if args.report_every is None else LiveReport(reporter, args.report_every)


def sweep_from_flags(args: argparse.Namespace, out: Path, console: Console) -> Sweep:
    """The sweep of --seeds, --jobs and --retry; each of its runs has the loggers of --logger."""
    # the runs may be trained in other processes, and say nothing but what their loggers warn of
    run_reporter = partial(open_loggers, tuple(args.logger), warn=print_warning)
    return Sweep(out, args.seeds, args.jobs, args.retry, Terminal(console), run_reporter)
