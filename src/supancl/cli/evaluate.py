"""`supancl evaluate knn|linear|variance|transfer|fewshot|finetune|suite`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.comparing import measured, printed, progress_console, sources
from supancl.cli.console import Terminal, table
from supancl.cli.encoders import at_least, names, numbers, subjects, whole_numbers
from supancl.errors import BadInput, CheckFailed, counted
from supancl.evaluate import (
    EpisodeSettings,
    EvaluatedEncoder,
    FineTuning,
    Plan,
    SgdSettings,
    evaluate_few_shot,
    evaluate_finetuning,
    evaluate_knn,
    evaluate_linear,
    evaluate_transfer,
    evaluate_variance,
    run_suite,
)
from supancl.evaluate.finetune import check_whole
from supancl.evaluate.naming import data_names
from supancl.evaluate.suite import make_out
from supancl.probes.transfer import TransferMetric
from supancl.reports.suite_page import write_suite


class Incomplete(CheckFailed):
    """Some results of a suite could not be had; those that could are there."""

    exit_code = BadInput.exit_code


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    protocols: dict[str, Callable[[argparse.Namespace, Console], dict[str, Any]]] = {
        "knn": knn,
        "linear": linear,
        "variance": variance,
        "transfer": transfer,
        "fewshot": fewshot,
        "finetune": finetune,
        "suite": suite,
    }
    return protocols[args.protocol](args, console)


# --- one encoder ------------------------------------------------------------------------------------------------------


def knn(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    ks = whole_numbers(args.k, "--k")
    at_least(args.temperature, 0, "--temperature", above=True)
    (subject,) = subjects(args, console)
    result = evaluate_knn(
        subject, args.data, ks, args.temperature, args.metric, args.leave_one_out, args.split, args.view
    )
    for k, value in result["by_k"].items():
        console.print(
            f"k-NN (k = {k}): {value:.2f}% of {counted(result['queries'], 'image')}, "
            f"{result['references']} references, {result['classes']} classes"
        )
    return result


def linear(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    of_sgd = {"epochs": args.epochs, "lr": args.lr, "batch_size": args.probe_batch}
    given = {name: value for name, value in of_sgd.items() if value is not None}
    flags = {"epochs": "--epochs", "lr": "--lr", "batch_size": "--probe-batch"}
    for name, value in given.items():
        at_least(value, 0 if name == "lr" else 1, flags[name], above=name == "lr")
    at_least(args.seed, 0, "--seed")
    if given and args.probe == "lbfgs":
        raise BadInput(
            f"{', '.join(flags[name] for name in given)}: of --probe sgd alone, since the fast probe is "
            "solved and not trained; add --probe sgd, or leave it out"
        )
    if args.augmented and args.probe == "lbfgs":
        raise BadInput("--augmented goes with --probe sgd: the fast probe fits one fixed set of features")
    sgd = SgdSettings(augmented=args.augmented, **given) if args.probe == "sgd" else None
    (subject,) = subjects(args, console)
    result = evaluate_linear(subject, args.data, sgd, args.seed, args.split, args.view)
    how = ridge_described(result) if args.probe == "lbfgs" else f"{counted(result['epochs'], 'epoch')} of SGD"
    console.print(
        f"linear ({how}): {result['accuracy']:.2f}% of {counted(result['queries'], 'image')}, "
        f"{result['classes']} classes"
    )
    return result


def ridge_described(result: dict[str, Any]) -> str:
    """The ridge's weight, and which images it was chosen on."""
    if "weight_by_half" in result:
        first, second = result["weight_by_half"]
        weights = f"{first:g}" if first == second else f"{first:g} and {second:g}"
        return f"ridge weight {weights}, of each half chosen on the other"
    images = counted(result["chosen_on_images"], "image")
    return f"ridge weight {result['weight']:g}, chosen on {images}: {result['chosen_on']}"


def variance(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    (subject,) = subjects(args, console)
    result = evaluate_variance(subject, args.data, args.split, args.view)
    rows = [
        ["S_W", result["within"]],
        ["S_T", result["total"]],
        ["S_W/S_T", result["ratio"]],
        ["effective rank", result["effective_rank"]],
        ["NC1 tr(S_W S_B^+)/C", result["nc1"]],
        ["NC2 norms", result["nc2_norms"]],
        ["NC2 angles", result["nc2_angles"]],
        ["NC2 distance from simplex", result["nc2_simplex"]],
        ["NC4 % not nearest to own mean", result["nc4"]],
    ]
    console.print(
        table(
            f"{result['images']} {result['split']} images",
            ["measure", "value"],
            [[name, f"{value:.4g}"] for name, value in rows],
        )
    )
    widest = sorted(result["spread"].items(), key=lambda item: -item[1])
    console.print("widest classes: " + ", ".join(f"{name} {value:.3f}" for name, value in widest[:5]))
    return result


def finetune(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    lrs = numbers(args.lr, "--lr") or []
    at_least(args.epochs, 1, "--epochs")
    at_least(args.train_batch, 2, "--train-batch")  # batch norm needs two
    at_least(args.weight_decay, 0, "--weight-decay")
    at_least(args.seed, 0, "--seed")
    for lr in lrs:
        at_least(lr, 0, "--lr", above=True)
    check_whole(args.layer, args.normalize)
    (subject,) = subjects(args, console)
    how = FineTuning(args.epochs, args.train_batch, tuple(dict.fromkeys(lrs)), args.weight_decay, args.seed)
    result = evaluate_finetuning(subject, args.data, how, Path(args.out) if args.out else None, args.split)
    console.print(
        f"fine-tuned (lr {result['lr']:g}, {counted(result['epochs'], 'epoch')}): "
        f"{result['accuracy']:.2f}% of {counted(result['queries'], 'image')}, mean per class "
        f"{result['mean_per_class']:.2f}%"
    )
    return result


# --- several encoders -------------------------------------------------------------------------------------------------


def transfer(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    found = sources(args, "transfer")
    judged = subjects(args, progress_console(args.format, console))
    tasks = [
        ("transfer", name, _transfer(source, args.metric, name))
        for name, source in zip(data_names(found), found, strict=True)
    ]
    return printed(measured(judged, tasks), args.format, console)


def _transfer(source: str, metric: TransferMetric | None, name: str) -> Callable[[EvaluatedEncoder], dict[str, Any]]:
    return lambda subject: evaluate_transfer(subject, source, metric, name=name)


def fewshot(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    shots = check_episodes(args)
    at_least(args.queries, 1, "--queries")
    found = sources(args, "few-shot")
    judged = subjects(args, progress_console(args.format, console))
    tasks = [
        (f"fewshot {args.ways}w{each}s", name, _few_shot(source, each, args, name))
        for name, source in zip(data_names(found), found, strict=True)
        for each in shots
    ]
    return printed(measured(judged, tasks), args.format, console)


def check_episodes(args: argparse.Namespace) -> list[int]:
    """The shots; what is wrong with an episode is said before an encoder is opened."""
    at_least(args.ways, 2, "--ways")
    at_least(args.episodes, 1, "--episodes")
    at_least(args.seed, 0, "--seed")
    return whole_numbers(args.shots, "--shots")


def _few_shot(
    source: str, shots: int, args: argparse.Namespace, name: str
) -> Callable[[EvaluatedEncoder], dict[str, Any]]:
    settings = EpisodeSettings(args.ways, shots, args.queries, args.episodes, args.seed, args.fill_queries)
    most_shots = max(whole_numbers(args.shots, "--shots"))
    return lambda subject: evaluate_few_shot(subject, source, settings, name=name, most_shots=most_shots)


def suite(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    at_least(args.k, 1, "--k")
    plan = Plan(
        Path(args.root),
        names(args.protocols),
        names(args.sets),
        args.ways,
        check_episodes(args),
        episodes=args.episodes,
        seed=args.seed,
        k=args.k,
        fill_queries=args.fill_queries,
    )
    plan.tasks()  # what is wrong with it is said before an encoder is opened
    out = Path(args.out)
    make_out(out)
    found = run_suite(subjects(args, console), plan, out, Terminal(console))
    if not found.results:
        raise BadInput(
            f"nothing could be measured; the first of {counted(len(found.failures), 'reason')}: "
            f"{found.failures[0]['why']}"
        )
    told = printed(found.results, "text", console) | {"failures": found.failures}
    page = write_suite(found.results, told, out)
    console.print(f"page: {page}")
    told |= {"page": str(page)}
    if found.failures:
        asked = counted(len(found.failures) + len(found.results), "result")
        raise Incomplete(
            f"{len(found.failures)} of {asked} could not be had (see the warnings); the others are in "
            f"{out}, and the same command again goes on",
            told,
        )
    return told
