"""A training step beside its peers: ours, lightly's, and the released code's as it is described, in one run.

    python experiments/benchmarks/step.py --rows cifar --json FILE            on a GPU
    OMP_NUM_THREADS=2 python experiments/benchmarks/step.py --rows cpu --json FILE
    python experiments/benchmarks/step.py --before TREE           against another checkout or commit: before.py
    python experiments/benchmarks/step.py --markdown FILE --into docs/performance.md

Every image is two augmented views, forward and backward. Contenders of a row take turns in one process, round by round;
the median is given, with the slowest and the fastest round. A loader's workers are started, and what they made ready
meanwhile is thrown away, before the clock runs. --json keeps what the file already holds of other rows, each row with
its commit, versions and date; --tiny runs everything at sizes that say nothing about speed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from before import FLAG, compare
from step_report import best_peer, commit_here, failed, markdown, merged, read, short, stamped, table
from step_rows import (
    Bench,
    Record,
    cifar_row,
    cpu_row,
    folder_rows,
    imagenet_row,
    ratio_rows,
    sweep_rows,
    vit_row,
)
from step_runs import agree_row, command_row, compile_at_once, profile_rows

from supancl.files import replace_section

ROWS: dict[str, Callable[[Bench], list[Record]]] = {
    "supsiam": partial(cifar_row, "supsiam"), "supbyol": partial(cifar_row, "supbyol"),
    "supcon": partial(cifar_row, "supcon"), "ratios": ratio_rows, "imagenet": imagenet_row, "vit": vit_row,
    "folder": folder_rows, "command": command_row, "sweeps": sweep_rows, "profile": profile_rows, "agree": agree_row,
    "cpu-digits": partial(cpu_row, "digits"), "cpu-cifar100": partial(cpu_row, "cifar100"),
}  # fmt: skip
GROUPS = {
    "cifar": ("supsiam", "supbyol", "supcon"),
    "cpu": ("cpu-digits", "cpu-cifar100"),
    "gpu": tuple(name for name in ROWS if name != "agree" and not name.startswith("cpu-")),
}


def wanted(text: str) -> list[str]:
    """Names of rows and groups, in the order in which rows share what has been compiled."""
    names = [each for name in text.split(",") for each in GROUPS.get(name, (name,))]
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise SystemExit(f"--rows {unknown[0]}: no such row; choose from {', '.join([*GROUPS, *ROWS])}")
    return [name for name in ROWS if name in names]


def beside_command(records: list[Record]) -> None:
    """The whole command's peer is lightly's SimSiam, where this call has measured it."""
    by_key = {record["key"]: record for record in records}
    if "command" not in by_key or "peers" not in by_key.get("supsiam", {}):
        return
    best, command = best_peer(by_key["supsiam"]), by_key["command"]
    if best is not None and "ours" in command:
        command["peers"] = [best]
        command["ratio"] = command.get("wall", command["ours"])["rate"] / best["rate"]


def measured(names: Sequence[str], bench: Bench, commit: str, keep: Path | None) -> list[Record]:
    records: list[Record] = []
    for name in names:
        begin, load = time.perf_counter(), os.getloadavg()[0]
        print(f"{name}:", flush=True)
        try:
            made = ROWS[name](bench)
        except Exception as error:  # one row that fails must not hide the others
            traceback.print_exc()
            text = (str(error).splitlines() or [""])[0][:200]
            made = [{"key": name, "work": name, "note": f"failed: {type(error).__name__}: {text}"}]
        records += [{**stamped(record, commit), "load_before": load} for record in made]
        beside_command(records)
        if keep is not None:
            merged(keep, records)  # at once: a later row may run out of time
        print(f"  {time.perf_counter() - begin:.1f} s for this row", flush=True)
    return records


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="gpu", help=f"comma-separated: {', '.join([*GROUPS, *ROWS])}")
    parser.add_argument("--json", type=Path, help="keep the rows here, beside what it holds already")
    parser.add_argument("--text", type=Path, help="folder for the profiles in full")
    parser.add_argument("--data", default="", help="for command and agree: any source that supancl takes")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="about so long is one turn")
    parser.add_argument("--ratio-rounds", type=int, default=40)
    parser.add_argument("--workers", type=int, default=min(16, cores), help="of lightly's loader")
    parser.add_argument("--epochs", type=int, default=30, help="of the whole command")
    parser.add_argument("--seeds", type=int, default=3, help="of agree")
    parser.add_argument("--commit", default="", help="where there is no git to ask")
    parser.add_argument("--precompile", action="store_true", help="compile what the rows need beforehand, all at once")
    parser.add_argument("--first-step", metavar="RECIPE", help="only build this step and say how long the first took")
    parser.add_argument("--tiny", action="store_true", help="only to see that everything runs")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="measure nothing, write this file's tables")
    parser.add_argument("--into", type=Path, help="with --markdown: a document with markers of the file's name")
    parser.add_argument("--before", **FLAG)
    parser.add_argument("--short", action="store_true", help="with --markdown: only ours and the fastest peer")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> list[Record]:
    args = parsed(argv)
    if args.markdown:
        text = (short if args.short else markdown)(read(args.markdown))
        if args.into:
            replace_section(args.into, args.markdown.stem, text)
        else:
            print(text, end="")
        return []
    cuda = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    if args.before:
        sys.exit(compare("step, GPU" if cuda and args.rows != "cpu" else "step", args.before))
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True  # as the training loop does, and to the peers' good too
    if args.text:
        args.text.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        device,
        args.tiny,
        args.rounds,
        args.seconds,
        args.ratio_rounds,
        args.workers,
        args.data,
        args.epochs,
        args.seeds,
        args.text,
    )
    if args.first_step:
        print(json.dumps(bench.ours(args.first_step).facts))
        return []
    names = wanted(args.rows)
    if args.precompile:
        print("compiling beforehand:", flush=True)
        bench.cold = compile_at_once(names, bench)
    records = measured(names, bench, args.commit or commit_here(), args.json)
    print("\n" + table(records))
    return records


if __name__ == "__main__":
    sys.exit(1 if any(failed(record) for record in main()) else 0)
