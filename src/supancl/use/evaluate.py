"""`evaluate`: what a frozen or fine-tuned encoder's features are worth, by one protocol or several."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from typing_extensions import Unpack

from supancl.config import PYTHON, Count, checked, hints
from supancl.errors import BadInput, CheckFailed, did_you_mean
from supancl.evaluation import PROTOCOLS as SETTINGS
from supancl.evaluation import FewShot, FineTune, Settings, Variance
from supancl.reporter import say, show
from supancl.reports.tables import Table, plain_table
from supancl.use import EncoderArgument, EncoderOptions, EncodersArgument, open_encoders

Format = Literal["text", "markdown", "latex", "csv", "json"]
WIDE_INTERVAL = 10.0  # points


class Incomplete(CheckFailed):
    """Some results of a suite could not be measured; the others are written."""

    exit_code = BadInput.exit_code


def evaluate(
    encoders: EncodersArgument,
    protocol: Annotated[str | None, PYTHON] = None,
    *,
    data: str | None = None,
    **settings: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Measure an encoder by k-NN and a linear classifier, or one protocol.

    Accuracies come with 95% intervals, chance, random weights and the run's start. Results of a run are kept in its
    folder.

    Parameters
    ----------
    encoders
        a run folder, an encoder.safetensors, timm:NAME, NAME@FILE, or a checkpoint of another library; in Python also
        a run or an encoder; of several, a table compares them
    protocol
        knn, linear, transfer, fewshot, variance, finetune or suite; None: knn and linear
    data
        a source (default: the run's data)
    no_baselines
        do not compare with random weights and with the run's start
    format
        of the table of several encoders
    root
        folder with benchmark data sets
    sets
        names of benchmarks (default: all in root)
    settings
        those of the protocol (`supancl evaluate PROTOCOL --help`), and how features are computed

    Returns
    -------
    dict
        the result, or with no protocol {"knn": result, "linear": result}

    Examples
    --------
    $ supancl evaluate runs/photos
    $ supancl evaluate linear runs/photos --split test
    """
    if protocol is None:
        return {name: PROTOCOLS[name](encoders, data=data, **settings) for name in ("knn", "linear")}
    if protocol not in PROTOCOLS:
        raise BadInput(f"no protocol {protocol!r}{did_you_mean(protocol, PROTOCOLS)}")
    return PROTOCOLS[protocol](encoders, **({} if data is None else {"data": data}), **settings)


def command(kind: type[Settings]) -> Callable[..., dict[str, Any]]:
    """The command of a protocol: its arguments are its settings, data and how encoders are opened."""
    documented = [each for each in fields(kind) if f"\n    {each.name}\n" in (kind.__doc__ or "")]
    takes_one = kind in (Variance, FineTune)
    own: dict[str, tuple[Any, Any]] = {"data": (str | None, None)}
    if kind.needs_data:
        own = {"data": (list[str] | str | None, None), "root": (str | None, None), "sets": (tuple[str, ...], ())}
    if kind not in (Variance, FewShot):
        own["no_baselines"] = bool, False
    if not takes_one:
        own["format"] = Format, "text"
    flags = {**own, **{each.name: (hints(kind)[each.name], each.default) for each in documented}}

    def protocol(encoders: EncodersArgument, **given: Any) -> dict[str, Any]:
        chosen = {name: given.pop(name, default) for name, (_, default) in own.items()}
        settings = kind.given({name: value for name, value in given.items() if name not in OPTIONS})
        options = {name: value for name, value in given.items() if name in OPTIONS}
        return run_protocol(encoders, settings, options, **chosen)

    keyword, Parameter = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter
    first = Parameter(
        "encoders", Parameter.POSITIONAL_OR_KEYWORD, annotation=EncoderArgument if takes_one else EncodersArgument
    )
    middle = [Parameter(name, keyword, default=value, annotation=hint) for name, (hint, value) in flags.items()]
    last = Parameter("options", Parameter.VAR_KEYWORD, annotation=Unpack[EncoderOptions])
    protocol.__name__, protocol.__doc__ = kind.name, kind.__doc__
    protocol.__signature__ = inspect.Signature([first, *middle, last])  # type: ignore[attr-defined]
    return protocol


def run_protocol(
    encoders: EncodersArgument,
    settings: Settings,
    options: EncoderOptions | Mapping[str, Any],
    data: list[str] | str | None = None,
    root: str | None = None,
    sets: Sequence[str] = (),
    no_baselines: bool = False,
    format: Format = "text",
) -> dict[str, Any]:
    """Measure each encoder on each source by a protocol, and print what was found; of several, as tables."""
    sources: list[str | None] = [data] if data is None or isinstance(data, str) else list(data)
    if settings.needs_data:
        sources = list(select_sources(data, root, sets, "few-shot" if isinstance(settings, FewShot) else "transfer"))
    opened = open_encoders(encoders, options, baselines=not no_baselines and not isinstance(settings, FewShot))
    from supancl.evaluation.protocols import evaluate
    from supancl.evaluation.results import data_label

    if len(opened) == 1 and not settings.needs_data:
        result = evaluate(opened[0], settings, *sources)
        if settings.name == "variance":
            show(variance_table(result))
        for line in describe(result) if settings.name != "variance" else ():
            say(line)
        return result
    from supancl.evaluation.suite import check_seeds
    from supancl.reports.tables import print_score_tables

    check_seeds(opened)
    named = (
        [data_label(source, [*filter(None, sources)]) for source in sources if source]
        if settings.needs_data
        else [None]
    )
    rows = (
        [replace(settings, shots=(shots,)) for shots in dict.fromkeys(settings.shots)]
        if isinstance(settings, FewShot)
        else [settings]
    )
    results = [
        evaluate(evaluated, row, source, name) | {"group": evaluated.group}
        for source, name in zip(sources, named, strict=True)
        for row in rows
        for evaluated in opened
    ]
    if not settings.needs_data:
        found = list(dict.fromkeys(result["source"] for result in results))
        results = [result | {"data": data_label(result["source"], found)} for result in results]
    tasks = {"knn": "k-NN (k = {k})", "fewshot": "fewshot {ways}w{shots}s"}  # the title of a table
    results = [result | {"task": tasks.get(settings.name, settings.name).format_map(result)} for result in results]
    summary = print_score_tables(results, format)
    for result in results if format == "text" and not isinstance(settings, FewShot) else ():
        name = f"{result['label'] if len(opened) == 1 else result['encoder']} on {result['data']}"
        for line in [of_images(result), *describe_certainty(result)]:
            say(f"{name}: {line}")
    return summary


# --- what is printed --------------------------------------------------------------------------------------------------


def of_images(result: Mapping[str, Any], images: str = "tested_images") -> str:
    """`66.67% [39.1, 86.2] of 12 images`, or `mAP 61.50% [58.0, 64.5] of 40 images`: figure and 95% interval."""
    from supancl.evaluation.results import figure_text

    return f"{figure_text(result)} of {result[images]} images"


def describe(result: Mapping[str, Any]) -> list[str]:
    """One encoder's result in lines: the figure, how it was measured, and what it is compared with."""
    titles = {"knn": "k-NN (k = {k})", "finetune": "fine-tuned (lr {lr:g}, epochs: {epochs})"}
    titles["linear"] = "linear (ridge {weight:g})" if result.get("probe") == "lbfgs" else "linear (SGD)"
    about = "".join(f", {key}: {result[key]}" for key in ("references", "classes") if key in result)
    lines = [f"{titles[result['protocol']].format_map(result)}: {of_images(result)}{about}"]
    others = [f"k = {k} {value:.2f}%" for k, value in result.get("by_k", {}).items() if k != str(result["k"])]
    return lines + [f"other k: {', '.join(others)}"] * bool(others) + describe_certainty(result)


def describe_certainty(result: Mapping[str, Any]) -> list[str]:
    """Levels, groups of classes, what the figure is tested with, and the verdict."""
    from supancl.evaluation.results import figure_text

    tested, lines = result.get("cross_validated") or result, []
    for level in result.get("levels", ()):
        k = "" if level.get("k") == result.get("k") else f", k = {level['k']}"
        lines.append(f"level {level['level']}, classes: {level['classes']}{k}: {of_images(level, 'images')}")
    if "map_11_point" in result:
        untested = f"; classes without a test image, left out: {result['untested_classes']}"
        lines.append(f"11-point mAP {result['map_11_point']:.2f}%{untested * bool(result['untested_classes'])}")
    if tested is not result:
        lines.append(f"cross-validated, labels unused in pretraining: {of_images(tested)}")
    if "by_class_size" in result:
        groups = [
            f"{name} {g['accuracy']:.2f}% (classes: {g['classes']})" for name, g in result["by_class_size"].items()
        ]
        lines.append(f"balanced accuracy {result['balanced_accuracy']:.2f}%: {', '.join(groups)}")
    if "baselines" in result:
        low, high = tested.get("accuracy_interval") or tested.get("map_interval") or (0.0, 0.0)
        if high - low > WIDE_INTERVAL:
            lines.append(f"an interval of {high - low:.0f} points: it cannot rank encoders that differ by less")
        beside = [f"chance {tested['chance']:.1f}%"]
        beside += [f"{row['name']} {figure_text(row)}" for row in result["baselines"]]
        lines += [", ".join(beside), str(result["verdict"])]
    return lines


def variance_table(result: Mapping[str, Any]) -> Table:
    rows = {
        "S_W": "within", "S_T": "total", "S_W/S_T": "ratio", "effective rank": "effective_rank",
        "NC1 tr(S_W S_B^+)/C": "nc1", "NC2 norms": "nc2_norms", "NC2 angles": "nc2_angles",
        "NC2 distance from simplex": "nc2_simplex", "NC4 % not nearest to own mean": "nc4",
    }  # fmt: skip
    values = [[name, "not measurable" if result[key] is None else f"{result[key]:.4g}"] for name, key in rows.items()]
    return plain_table(f"{result['images']} {result['split']} images", ["measure", "value"], values)


# --- suite ------------------------------------------------------------------------------------------------------------


def suite(
    encoders: EncodersArgument,
    *,
    root: str,
    out: str | Path,
    sets: tuple[str, ...] = (),
    protocols: tuple[str, ...] = ("knn", "transfer", "fewshot"),
    k: int = 20,
    ways: int = 5,
    shots: tuple[int, ...] = (1, 5),
    episodes: int = 2000,
    fill_queries: bool = False,
    seed: int = 0,
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Measure several protocols on every benchmark data set in a folder.

    Parameters
    ----------
    out
        folder of results; an existing one is continued
    protocols
        of knn, transfer and fewshot
    k
        neighbours of knn
    ways
        classes per episode
    shots
        labelled images per class
    episodes
        number of episodes
    fill_queries
        draw queries of classes with few images with replacement, as in the authors' code
    seed
        of the episodes

    Examples
    --------
    $ supancl evaluate suite runs/a runs/b --root benchmarks --out results
    $ supancl evaluate suite runs/photos --root benchmarks --sets pets,dtd
    """
    episode = FewShot.given(
        {"ways": ways, "shots": shots, "episodes": episodes, "fill_queries": fill_queries, "seed": seed}
    )
    neighbours = checked(k, Count, "k")
    from supancl.evaluation.suite import make_out_folder, run_suite, suite_tasks
    from supancl.reporter import current_reporter
    from supancl.reports.tables import print_score_tables, write_suite

    tasks = suite_tasks(Path(root), protocols, sets, neighbours, episode)
    folder = Path(out)
    make_out_folder(folder)
    outcome = run_suite(open_encoders(encoders, options), tasks, Path(root), folder, current_reporter())
    failures = outcome.failures
    if not outcome.results:
        raise BadInput(f"nothing could be measured; the first of {len(failures)} reasons: {failures[0]['why']}")
    summary = print_score_tables(outcome.results, "text") | {"failures": failures}
    path = write_suite(outcome.results, summary, folder)
    say(f"{path}, with the tables as Markdown, LaTeX and csv beside it")
    if failures:
        raise Incomplete(
            f"{len(failures)} of {len(failures) + len(outcome.results)} results could not be measured (see the "
            f"warnings); the others are in {folder}; run the same command again to continue",
            summary,
        )
    return summary


OPTIONS = EncoderOptions.__annotations__
PROTOCOLS: dict[str, Callable[..., dict[str, Any]]] = {
    **{name: command(kind) for name, kind in SETTINGS.items()},
    "suite": suite,
}


# --- encoders and sources ---------------------------------------------------------------------------------------------


def select_sources(
    data: list[str] | str | None, root: str | None, sets: Sequence[str], use: Literal["transfer", "few-shot"]
) -> list[str]:
    """The sources of `data`, and the benchmarks that are in `root`."""
    from supancl.data.opening import check_source
    from supancl.data.sources.benchmarks import choose_benchmarks, find_benchmarks

    selected = [data] if isinstance(data, str) else list(data or ())
    if (sets or not selected) and not root:
        raise BadInput(
            f"name data to evaluate on: data, or root, a folder with data sets for {use}, of which sets names some"
        )
    for source in selected:
        check_source(source)
    if root:
        selected += [f"{name}@{root}" for name in choose_benchmarks(root, sets, find_benchmarks(root, use))]
    return list(dict.fromkeys(selected))
