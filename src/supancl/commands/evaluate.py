"""`supancl evaluate knn|linear|variance|transfer|fewshot|finetune|suite`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.commands.encoders import add_encoder_flags, numbers, subjects, whole_numbers
from supancl.console import Terminal, table
from supancl.errors import BadInput
from supancl.flags import OneLineParser, common
from supancl.judge import Subject, few_shot_of, knn_of, linear_of, transfer_of, variance_of
from supancl.judge.finetune import FineTuning, finetune_of
from supancl.judge.suite import PROTOCOLS, Plan, differences, rankings, suite_of
from supancl.report.score_table import score_table
from supancl.report.suite_page import write_suite

FORMATS = ("text", "markdown", "latex", "csv", "json")


def arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="protocol", required=True, parser_class=OneLineParser)

    def add(name: str, text: str, several: bool = False) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = below.add_parser(name, parents=[common()], help=text, description=text)
        add_encoder_flags(made, several)
        return made

    knn = add("knn", "k nearest neighbours among the training images")
    knn.add_argument("--data", help="a source (default: the run's own)")
    knn.add_argument("--k", default="20", help="neighbours; several with commas, the first one counts")
    knn.add_argument("--temperature", type=float, default=0.1)
    knn.add_argument("--metric", default="cosine", choices=("cosine", "l2"))
    knn.add_argument("--leave-one-out", action="store_true", help="held-out images judged by one another")
    linear = add("linear", "a linear classifier on frozen features")
    linear.add_argument("--data", help="a source (default: the run's own)")
    linear.add_argument("--probe", default="lbfgs", choices=("lbfgs", "sgd"), help="fast and convex, or as the paper")
    linear.add_argument("--augmented", action="store_true", help="sgd on random crops, encoded anew every epoch")
    linear.add_argument("--epochs", type=int, default=100, help="of sgd; the rate falls at 60%% and 80%%")
    linear.add_argument("--lr", type=float, default=30.0, help="of sgd, at a batch of 256")
    linear.add_argument("--probe-batch", type=int, default=256, help="batch size of sgd")
    variance = add("variance", "intra-class variance, effective rank, neural collapse")
    variance.add_argument("--data", help="a source (default: the run's own)")
    variance.add_argument("--split", default="held-out", choices=("held-out", "train"))
    add_transfer(add("transfer", "L-BFGS transfer (App. E) to one or more data sets", several=True))
    add_few_shot(add("fewshot", "N-way K-shot episodes on one or more data sets", several=True))
    add_finetune(add("finetune", "train encoder and a new classifier together"))
    add_suite(add("suite", "every protocol on every data set that is in a folder", several=True))


def add_sets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", action="append", default=[], help="a source; may be given several times")
    parser.add_argument("--root", help="folder with the data sets of the registry")
    parser.add_argument("--sets", help="names of the registry, with commas (default: all that are in --root)")


def add_transfer(parser: argparse.ArgumentParser) -> None:
    add_sets(parser)
    parser.add_argument("--metric", choices=("top-1", "mean-per-class"), help="default: the registry's, or top-1")
    parser.add_argument("--format", default="text", choices=FORMATS, help="of the table")


def add_few_shot(parser: argparse.ArgumentParser) -> None:
    add_sets(parser)
    parser.add_argument("--ways", type=int, default=5)
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the episodes, which all encoders share")
    parser.add_argument("--format", default="text", choices=FORMATS, help="of the table")


def add_finetune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="a source (default: the run's own)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--train-batch", type=int, default=64)
    parser.add_argument("--lr", default="0.01,0.03,0.1", help="several: compared on held-out training images")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder for the fine-tuned encoder and its classifier")


def add_suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", required=True, help="folder with the data sets of the registry")
    parser.add_argument("--out", required=True, help="folder of results; the same one again goes on")
    parser.add_argument("--sets", help="names of the registry, with commas (default: all that are in --root)")
    parser.add_argument("--protocols", default=",".join(PROTOCOLS))
    parser.add_argument("--shots", default="1,5")
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    protocols: dict[str, Callable[[argparse.Namespace, Console], dict[str, Any]]] = {
        "knn": knn, "linear": linear, "variance": variance, "transfer": transfer, "fewshot": fewshot,
        "finetune": finetune, "suite": suite,
    }
    return protocols[args.protocol](args, console)


# --- one encoder ------------------------------------------------------------------------------------------------------


def at_least(value: float, least: float, flag: str, above: bool = False) -> None:
    if value < least or (above and value == least):
        raise BadInput(f"{flag} {value:g}: must be {'above' if above else 'at least'} {least:g}")


def knn(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    ks = [int(value) for value in numbers(args.k, "--k") or []]
    for k in ks:
        at_least(k, 1, "--k")
    at_least(args.temperature, 0, "--temperature", above=True)
    (subject,) = subjects(args, console)
    result = knn_of(subject, args.data, ks, args.temperature, args.metric, args.leave_one_out)
    for k, value in result["by_k"].items():
        console.print(f"k-NN (k = {k}): {value:.2f}% of {result['queries']} images, "
                      f"{result['references']} references, {result['classes']} classes")
    return result


def linear(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    at_least(args.epochs, 1, "--epochs")
    at_least(args.probe_batch, 1, "--probe-batch")
    at_least(args.lr, 0, "--lr", above=True)
    (subject,) = subjects(args, console)
    result = linear_of(subject, args.data, args.probe, args.epochs, args.lr, args.probe_batch, args.augmented)
    how = f"ridge weight {result['weight']:g}" if args.probe == "lbfgs" else f"{result['epochs']} epochs of SGD"
    console.print(f"linear ({how}): {result['accuracy']:.2f}% of {result['queries']} images, "
                  f"{result['classes']} classes")
    return result


def variance(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    (subject,) = subjects(args, console)
    result = variance_of(subject, args.data, args.split)
    rows = [["S_W", result["within"]], ["S_T", result["total"]], ["S_W/S_T", result["ratio"]],
            ["effective rank", result["effective_rank"]], ["NC1 tr(S_W S_B^+)/C", result["nc1"]],
            ["NC2 norms", result["nc2_norms"]], ["NC2 angles", result["nc2_angles"]],
            ["NC2 distance from simplex", result["nc2_simplex"]], ["NC4 % not nearest to own mean", result["nc4"]]]
    console.print(table(f"{result['images']} {args.split} images", ["measure", "value"],
                        [[name, f"{value:.4g}"] for name, value in rows]))
    widest = sorted(result["spread"].items(), key=lambda item: -item[1])
    console.print("widest classes: " + ", ".join(f"{name} {value:.3f}" for name, value in widest[:5]))
    return result


def finetune(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    lrs = numbers(args.lr, "--lr") or []
    for value, flag in [(args.epochs, "--epochs"), (args.train_batch, "--train-batch")]:
        at_least(value, 1, flag)
    for lr in lrs:
        at_least(lr, 0, "--lr", above=True)
    (subject,) = subjects(args, console)
    how = FineTuning(args.epochs, args.train_batch, tuple(lrs), args.weight_decay, args.seed)
    result = finetune_of(subject, args.data, how, Path(args.out) if args.out else None)
    console.print(f"fine-tuned (lr {result['lr']:g}, {result['epochs']} epochs): {result['accuracy']:.2f}% of "
                  f"{result['queries']} images, mean per class {result['mean_per_class']:.2f}%")
    return result


# --- several encoders -------------------------------------------------------------------------------------------------


def sources(args: argparse.Namespace, protocol: str) -> list[str]:
    """The sources named, and the data sets of the registry that are in --root."""
    from supancl.data.benchmarks import official_name, present_benchmarks

    found = list(args.data)
    if args.root:
        use = "transfer" if protocol == "transfer" else "few-shot"
        there = present_benchmarks(args.root, use)  # type: ignore[arg-type]
        named = [official_name(name) for name in args.sets.split(",")] if args.sets else list(there)
        for name in named:
            if name not in there:
                raise BadInput(f"{name} is not in {args.root}; see: supancl data where {name}")
        found += [f"{name}@{args.root}" for name in named]
    elif args.sets:
        raise BadInput("--sets names data sets of --root; give it too")
    if not found:
        raise BadInput(f"name data to judge on: --data SOURCE, or --root FOLDER with data sets for {protocol}")
    return found


def judged(
    chosen: Sequence[Subject], tasks: Sequence[tuple[str, str, Callable[[Subject], dict[str, Any]]]]
) -> list[dict[str, Any]]:
    """(protocol, data, how) for every subject."""
    results = []
    for subject in chosen:
        for protocol, data, how in tasks:
            results.append(how(subject) | {"task": protocol, "data": data, "group": subject.group})
    return results


def printed(results: list[dict[str, Any]], form: str, console: Console) -> dict[str, Any]:
    tables = rankings(results)
    for protocol, ranking in tables.items():
        console.print(protocol)
        console.print(score_table(ranking, form), end="")  # type: ignore[arg-type]
    gaps = differences(results)
    for gap in gaps:
        console.print(f"{gap['protocol']} {gap['data']}: {gap['a']} - {gap['b']} = {gap['difference']:+.2f} "
                      f"± {gap['interval']:.2f} (same episodes)")
    return {"results": results, "tables": {name: ranking.to_json() for name, ranking in tables.items()},
            "differences": gaps}


def transfer(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.judge.subject import data_name

    named = sources(args, "transfer")
    tasks = [("transfer", data_name(each), _transfer(each, args.metric)) for each in named]
    return printed(judged(subjects(args, console), tasks), args.format, console)


def _transfer(source: str, metric: str | None) -> Callable[[Subject], dict[str, Any]]:
    return lambda subject: transfer_of(subject, source, metric)


def fewshot(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    from supancl.judge.subject import data_name

    named = sources(args, "fewshot")
    tasks = [(f"fewshot {args.ways}w{shots}s", data_name(each), _few_shot(each, shots, args))
             for shots in whole_numbers(args.shots, "--shots") for each in named]
    return printed(judged(subjects(args, console), tasks), args.format, console)


def _few_shot(source: str, shots: int, args: argparse.Namespace) -> Callable[[Subject], dict[str, Any]]:
    return lambda subject: few_shot_of(subject, source, args.ways, shots, args.queries, args.episodes, args.seed)


def suite(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    plan = Plan(Path(args.root), args.protocols.split(","), args.sets.split(",") if args.sets else (),
                shots=whole_numbers(args.shots, "--shots"), episodes=args.episodes, seed=args.seed)
    plan.tasks()  # what is wrong with it is said before an encoder is opened
    out = Path(args.out)
    results = suite_of(subjects(args, console), plan, out, Terminal(console))
    told = printed(results, "text", console)
    page = write_suite(results, told, out)
    console.print(f"page: {page}")
    return told | {"page": str(page)}
