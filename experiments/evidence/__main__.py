"""python -m experiments.evidence {plan,run,judge,page}."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.evidence.further_plans import PLANS, named_plan
from experiments.evidence.plan import Plan, kind_of
from experiments.evidence.results import expected_seconds, read_evidence, read_results, waiting
from supancl.errors import BadInput, SupanclError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"  # of the first plan; the others have a folder in it


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        plan = named_plan(args.plan)
        args.results = args.results or (RESULTS if plan.name in ("cifar100", "digits") else RESULTS / args.plan)
        {"plan": show_plan, "run": run, "judge": judge_one, "page": page}[args.what](plan, args)
        return 0
    except SupanclError as error:
        print(f"evidence: {error}", file=sys.stderr)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m experiments.evidence", description="The runs behind RESULTS.md, and the page."
    )
    arguments.add_argument("what", choices=("plan", "run", "judge", "page"))
    arguments.add_argument("name", nargs="?", help="name of the run to evaluate (for judge)")
    arguments.add_argument("--plan", default="cifar100", help=f"{', '.join(PLANS)}, or one of them with -rehearsal")
    arguments.add_argument(
        "--results",
        type=Path,
        help="folder of the result files (default: experiments/results, or PLAN in it for later plans)",
    )
    arguments.add_argument(
        "--work", type=Path, default=ROOT / "runs" / "evidence", help="folder with data/; gets runs/"
    )
    arguments.add_argument("--until-seconds", type=float, help="start no run that would not be evaluated by then")
    arguments.add_argument("--beside", action="store_true", help="evaluate a run while the next one trains")
    arguments.add_argument("--shared", action="store_true", help="other work is on the machine; marks the speeds")
    arguments.add_argument("--only", action="append", default=[], help="runs whose name contains this; may be repeated")
    arguments.add_argument("--commit", help="commit of the code, if it does not run from a repository")
    arguments.add_argument("--out", type=Path, default=ROOT / "RESULTS.md", help="the page")
    arguments.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures", help="folder of its figures")
    arguments.add_argument("--readme", type=Path, help="a page to put the short table in, between its markers")
    arguments.add_argument("--choosing", type=Path, help="a page to put the table of advice in, between its markers")
    return arguments


def show_plan(plan: Plan, args: argparse.Namespace) -> None:
    """Print the runs that are left, in order, with their expected seconds."""
    results = read_results(args.results, plan)
    left = waiting(plan, results)
    total, compiled = 0.0, set[str]()
    for step in left:
        seconds = expected_seconds(
            step, plan, results, kind_of(step) in compiled, judged=not args.beside, shared=args.shared
        )
        compiled.add(kind_of(step))
        total += seconds
        print(f"{step.name:24s} {step.epochs:4d} epochs {seconds:6.0f} s {total:7.0f} s in all")
    print(f"{len(plan.steps) - len(left)} of {len(plan.steps)} runs are done; the others should take {total:.0f} s")


def run(plan: Plan, args: argparse.Namespace) -> None:
    from experiments.evidence.drive import Driver, check_data

    check_data(plan, args.work)
    if args.until_seconds is not None and args.until_seconds <= 0:
        raise BadInput(f"--until-seconds {args.until_seconds:g}: must be above 0")
    driver = Driver(plan, args.results, args.work, args.until_seconds, args.beside, args.only, args.commit, args.shared)
    names = driver.run()
    print(f"{len(names)} runs were made: {', '.join(names) or 'none'}")


def judge_one(plan: Plan, args: argparse.Namespace) -> None:
    from experiments.evidence.judge import TRAINING_FILE, called, inside, judge

    if args.name is None or not (args.work / "runs" / args.name / TRAINING_FILE).exists():
        raise BadInput(f"judge {args.name}: no such run in {args.work / 'runs'}; name one that was trained there")
    results = args.results.resolve()
    with inside(args.work):
        judge(plan, args.name, Path("runs") / args.name, results, called)


def page(plan: Plan, args: argparse.Namespace) -> None:
    from experiments.evidence.figures import draw, draw_photographs
    from experiments.evidence.imagenet_page import imagenet_part
    from experiments.evidence.page import update_readme, whole_page
    from experiments.evidence.run_table import runs_table
    from experiments.evidence.studies import all_studies, update_choosing

    if plan.family == "imagenet100":  # only this part, for a look; RESULTS.md has all
        print(imagenet_part(args.results, plan))
        return
    if plan.name in ("supbyol", "cifar10", "pools"):
        raise BadInput(f"--plan {plan.name}: is a part of RESULTS.md; leave --plan out to write the whole page")
    evidence = read_evidence(args.results, plan)
    figure_names = draw(evidence, args.results / "maps", args.figures)
    draw_photographs(args.results / "imagenet", args.figures)
    args.out.write_text(whole_page(evidence, figure_names, args.results), encoding="utf-8")
    (args.results / "runs.csv").write_text(runs_table(evidence, args.results), encoding="utf-8")
    if args.readme:
        update_readme(args.readme, evidence, args.results)
    if args.choosing:
        update_choosing(args.choosing, all_studies(evidence, args.results))
    print(f"{args.out}: {len(evidence.results)} runs; figures: {', '.join(figure_names) or 'none yet'}")


if __name__ == "__main__":
    sys.exit(main())
