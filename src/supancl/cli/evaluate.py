"""`supancl evaluate knn|linear|variance|transfer|fewshot|finetune|suite`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.certainty import describe_at_k, describe_figure, print_certainty
from supancl.cli.comparing import measure_all, print_results, progress_console, select_sources
from supancl.cli.console import Terminal, table
from supancl.cli.encoders import (
    check_at_least,
    open_encoders,
    parse_integers,
    parse_names,
    parse_numbers,
)
from supancl.errors import BadInput, CheckFailed, plural
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
from supancl.evaluate.comparison import check_seeds
from supancl.evaluate.finetune import check_whole_encoder
from supancl.evaluate.naming import data_names
from supancl.evaluate.suite import make_out_folder
from supancl.probes.knn import DEFAULT_K
from supancl.reports.score_table import TableFormat
from supancl.reports.suite_page import write_suite

NOT_MEASURABLE = "not measurable"


class Incomplete(CheckFailed):
    """Some results of a suite could not be measured; the others are written."""

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
    ks = None if args.k is None else parse_integers(args.k, "--k")
    check_at_least(args.temperature, 0, "--temperature", above=True)

    def measure(evaluated: EvaluatedEncoder) -> dict[str, Any]:
        return evaluate_knn(
            evaluated, args.data, ks, args.temperature, args.metric, args.leave_one_out, args.split, args.view
        )

    if len(args.encoder) > 1:
        return compare_encoders(args, "k-NN (k = {k})", measure, console)
    result = measure(*open_encoders(args, console))
    if ks is None and result["k"] < DEFAULT_K:
        console.print(f"k = {result['k']}: a quarter of the references per class (--k sets another)")
    for k in result["by_k"]:
        console.print(
            f"k-NN (k = {k}): {describe_at_k(result, k)}, "
            f"{result['references']} references, {result['classes']} classes"
        )
    print_certainty(result, console)
    return result


def linear(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    sgd_options = {"epochs": args.epochs, "lr": args.lr, "batch_size": args.probe_batch}
    overrides = {name: value for name, value in sgd_options.items() if value is not None}
    flags = {"epochs": "--epochs", "lr": "--lr", "batch_size": "--probe-batch"}
    for name, value in overrides.items():
        check_at_least(value, 0 if name == "lr" else 1, flags[name], above=name == "lr")
    check_at_least(args.seed, 0, "--seed")
    if overrides and args.probe == "lbfgs":
        raise BadInput(
            f"{', '.join(flags[name] for name in overrides)}: only for --probe sgd, because lbfgs has "
            "no such setting; add --probe sgd, or leave it out"
        )
    if args.augmented and args.probe == "lbfgs":
        raise BadInput(
            "--augmented: only for --probe sgd, because lbfgs fits fixed features; add --probe sgd, or leave it out"
        )
    sgd = SgdSettings(augmented=args.augmented, **overrides) if args.probe == "sgd" else None

    def measure(evaluated: EvaluatedEncoder) -> dict[str, Any]:
        return evaluate_linear(evaluated, args.data, sgd, args.seed, args.split, args.view)

    if len(args.encoder) > 1:
        return compare_encoders(args, "linear", measure, console)
    result = measure(*open_encoders(args, console))
    method = describe_ridge(result) if args.probe == "lbfgs" else f"{plural(result['epochs'], 'epoch')} of SGD"
    console.print(f"linear ({method}): {describe_figure(result)}, {result['classes']} classes")
    print_certainty(result, console)
    return result


def describe_ridge(result: dict[str, Any]) -> str:
    """The weight of the ridge, and the images it was chosen on."""
    if "weight_by_half" in result:
        first, second = result["weight_by_half"]
        weights = f"weight {first:g}" if first == second else f"weights {first:g} and {second:g}"
        return f"ridge {weights}, for each half of the images chosen on the other half"
    images = plural(result["chosen_on_images"], "image")
    return f"ridge weight {result['weight']:g}, chosen on {images}: {result['chosen_on']}"


def variance(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    (evaluated,) = open_encoders(args, console)
    result = evaluate_variance(evaluated, args.data, args.split, args.view)
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
            [[name, NOT_MEASURABLE if value is None else f"{value:.4g}"] for name, value in rows],
        )
    )
    if result["within"] is None:
        console.print("every class has one image, so nothing within classes can be measured")
    measurable = {name: value for name, value in result["spread"].items() if value is not None}
    widest = sorted(measurable.items(), key=lambda item: -item[1])
    if widest:
        console.print("widest classes: " + ", ".join(f"{name} {value:.3f}" for name, value in widest[:5]))
    return result


def finetune(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    lrs = parse_numbers(args.lr, "--lr") or []
    check_at_least(args.epochs, 1, "--epochs")
    check_at_least(args.train_batch, 2, "--train-batch")  # batch norm needs two
    check_at_least(args.weight_decay, 0, "--weight-decay")
    check_at_least(args.seed, 0, "--seed")
    for lr in lrs:
        check_at_least(lr, 0, "--lr", above=True)
    check_whole_encoder(args.layer, args.normalize)
    (evaluated,) = open_encoders(args, console)
    chosen = {
        name: getattr(args, name) for name in ("epochs", "weight_decay", "seed", "views", "freeze_norm", "probe_first")
    }
    settings = FineTuning(batch_size=args.train_batch, lrs=tuple(dict.fromkeys(lrs)), **chosen)
    result = evaluate_finetuning(evaluated, args.data, settings, Path(args.out) if args.out else None, args.split)
    console.print(
        f"fine-tuned (lr {result['lr']:g}, {plural(result['epochs'], 'epoch')}): "
        f"{describe_figure(result)}, mean per class {result['mean_per_class']:.2f}%"
    )
    print_certainty(result, console)
    return result


# --- several encoders -------------------------------------------------------------------------------------------------


def compare_encoders(
    args: argparse.Namespace, title: str, measure: Callable[[EvaluatedEncoder], dict[str, Any]], console: Console
) -> dict[str, Any]:
    """Measure each encoder, on --data or on its own run's data, and print one table; `title` may name result keys."""
    encoders = open_encoders(args, progress_console(args.format, console))
    check_seeds(encoders)
    results = [measure(evaluated) | {"group": evaluated.group} for evaluated in encoders]
    sources = list(dict.fromkeys(result["source"] for result in results))
    names = dict(zip(sources, data_names(sources), strict=True))
    results = [result | {"data": names[result["source"]], "task": title.format_map(result)} for result in results]
    return _print_with_certainty(results, args.format, console)


def _print_with_certainty(results: list[dict[str, Any]], form: TableFormat, console: Console) -> dict[str, Any]:
    """Print the tables, and as text for each encoder and data set how much its accuracy says."""
    summary = print_results(results, form, console)
    only_one = len({result["encoder"] for result in results}) == 1
    for result in results if form == "text" else ():
        name = f"{result['label'] if only_one else result['encoder']} on {result['data']}"
        console.print(f"{name}: {describe_figure(result)}")
        print_certainty(result, console, name)
    return summary


def transfer(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    data = select_sources(args, "transfer")
    encoders = open_encoders(args, progress_console(args.format, console))
    tasks = [
        ("transfer", name, partial(evaluate_transfer, source=source, metric=args.metric, name=name))
        for name, source in zip(data_names(data), data, strict=True)
    ]
    return _print_with_certainty(measure_all(encoders, tasks), args.format, console)


def fewshot(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    shots = check_episodes(args)
    check_at_least(args.queries, 1, "--queries")
    data = select_sources(args, "few-shot")
    encoders = open_encoders(args, progress_console(args.format, console))
    tasks = []
    for name, source in zip(data_names(data), data, strict=True):
        for count in shots:
            settings = EpisodeSettings(args.ways, count, args.queries, args.episodes, args.seed, args.fill_queries)
            run = partial(evaluate_few_shot, source=source, settings=settings, name=name, most_shots=max(shots))
            tasks.append((f"fewshot {args.ways}w{count}s", name, run))
    return print_results(measure_all(encoders, tasks), args.format, console)


def check_episodes(args: argparse.Namespace) -> list[int]:
    """Refuse bad settings of episodes, before an encoder is opened; returns the shots."""
    check_at_least(args.ways, 2, "--ways")
    check_at_least(args.episodes, 1, "--episodes")
    check_at_least(args.seed, 0, "--seed")
    return parse_integers(args.shots, "--shots")


def suite(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    check_at_least(args.k, 1, "--k")
    plan = Plan(
        Path(args.root),
        parse_names(args.protocols),
        parse_names(args.sets),
        args.ways,
        check_episodes(args),
        episodes=args.episodes,
        seed=args.seed,
        k=args.k,
        fill_queries=args.fill_queries,
    )
    plan.tasks()  # refuses a bad plan before an encoder is opened
    out = Path(args.out)
    make_out_folder(out)
    outcome = run_suite(open_encoders(args, console), plan, out, Terminal(console))
    if not outcome.results:
        raise BadInput(
            f"nothing could be measured; the first of {plural(len(outcome.failures), 'reason')}: "
            f"{outcome.failures[0]['why']}"
        )
    summary = print_results(outcome.results, "text", console) | {"failures": outcome.failures}
    page = write_suite(outcome.results, summary, out)
    console.print(f"page: {page}")
    summary |= {"page": str(page)}
    if outcome.failures:
        total = plural(len(outcome.failures) + len(outcome.results), "result")
        raise Incomplete(
            f"{len(outcome.failures)} of {total} could not be measured (see the warnings); the others are in "
            f"{out}; run the same command again to continue",
            summary,
        )
    return summary
