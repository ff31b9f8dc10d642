"""python -m experiments.evidence {plan,run,judge,page,defaults}."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.evidence.imagenet import imagenet_plan, imagenet_rehearsal
from experiments.evidence.plan import PLANS, Plan, kind_of, rehearsal
from supancl.errors import BadInput, SupanclError, nearest

ROOT = Path(__file__).resolve().parents[2]
BEYOND = {"imagenet": imagenet_plan, "imagenet-rehearsal": imagenet_rehearsal}


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        plan = named_plan(args.plan)
        args.results = args.results or results_of(args.plan)
        {"plan": show_plan, "run": run, "judge": judge_one, "page": page, "defaults": defaults}[args.what](plan, args)
        return 0
    except SupanclError as error:
        print(f"evidence: {error}", file=sys.stderr)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m experiments.evidence", description="The runs behind RESULTS.md, and the page."
    )
    made.add_argument("what", choices=("plan", "run", "judge", "page", "defaults"))
    made.add_argument("name", nargs="?", help="of the run to judge")
    made.add_argument(
        "--plan", default="cifar100", help=f"{', '.join([*PLANS, 'imagenet'])}, or one of them with -rehearsal"
    )
    made.add_argument(
        "--results",
        type=Path,
        help="folder of the files, one a run (default: experiments/results, or PLAN in it for later plans)",
    )
    made.add_argument("--work", type=Path, default=ROOT / "runs" / "evidence", help="folder with data/; gets runs/")
    made.add_argument("--until-seconds", type=float, help="no run is started that would not be judged by then")
    made.add_argument("--beside", action="store_true", help="judge a run while the next one trains")
    made.add_argument("--shared", action="store_true", help="other work is on the machine: speeds are marked")
    made.add_argument("--only", action="append", default=[], help="runs whose name contains this; may be repeated")
    made.add_argument("--commit", help="of the code, where it runs from no repository")
    made.add_argument("--out", type=Path, default=ROOT / "RESULTS.md", help="the page")
    made.add_argument("--figures", type=Path, default=ROOT / "docs" / "figures", help="folder of its figures")
    made.add_argument("--readme", type=Path, help="a page that gets a short table between its marks")
    return made


def results_of(name: str) -> Path:
    return ROOT / "experiments" / "results" / name if name in BEYOND else ROOT / "experiments" / "results"


def named_plan(name: str) -> Plan:
    if name in BEYOND:
        return BEYOND[name]()
    base = name.removesuffix("-rehearsal")
    if base not in PLANS:
        raise BadInput(f"--plan {name}: no such plan{nearest(base, PLANS)}")
    return PLANS[base]() if base == name else rehearsal(PLANS[base]())


def show_plan(plan: Plan, args: argparse.Namespace) -> None:
    """What is done, and what is left with the seconds it should take, in the order it will be made."""
    from experiments.evidence.results import expected_seconds, read_results, waiting

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
    print(f"{len(plan.steps) - len(left)} of {len(plan.steps)} runs are there; the others should take {total:.0f} s")


def run(plan: Plan, args: argparse.Namespace) -> None:
    from experiments.evidence.drive import Driver, check_data

    check_data(plan, args.work)
    if args.until_seconds is not None and args.until_seconds <= 0:
        raise BadInput(f"--until-seconds {args.until_seconds:g}: must be above 0")
    driver = Driver(plan, args.results, args.work, args.until_seconds, args.beside, args.only, args.commit, args.shared)
    made = driver.run()
    print(f"{len(made)} runs were made: {', '.join(made) or 'none'}")


def judge_one(plan: Plan, args: argparse.Namespace) -> None:
    from experiments.evidence.drive import TOLD, called, inside
    from experiments.evidence.judge import judge

    if args.name is None or not (args.work / "runs" / args.name / TOLD).exists():
        raise BadInput(f"judge {args.name}: no such run in {args.work / 'runs'}; name one that was trained there")
    results = args.results.resolve()
    with inside(args.work):
        judge(plan, args.name, Path("runs") / args.name, results, called)


def page(plan: Plan, args: argparse.Namespace) -> None:
    from experiments.evidence.figures import draw
    from experiments.evidence.imagenet_page import imagenet_part
    from experiments.evidence.page import write_page
    from experiments.evidence.results import read_results
    from experiments.evidence.short import put_short

    if args.plan in BEYOND:  # their part alone, to look at: RESULTS.md has all of them
        print(imagenet_part(args.results, plan))
        return
    results = read_results(args.results, plan)
    drawn = draw(plan, results, args.results / "maps", args.figures)
    text = write_page(plan, results, drawn) + imagenet_part(args.results / "imagenet")
    args.out.write_text(text, encoding="utf-8")
    if args.readme:
        put_short(args.readme, plan, results)
    print(f"{args.out}: {len(results)} runs; figures: {', '.join(drawn) or 'none yet'}")


def defaults(plan: Plan, args: argparse.Namespace) -> None:
    from experiments.evidence.choices import default_lines
    from experiments.evidence.results import read_results

    print("\n".join(default_lines(plan, read_results(args.results, plan))))


if __name__ == "__main__":
    sys.exit(main())
