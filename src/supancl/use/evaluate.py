"""`evaluate`: what a frozen or fine-tuned encoder's features are worth, by one protocol or several."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from typing_extensions import TypedDict, Unpack

from supancl.config import PYTHON, Count, checked, hints
from supancl.errors import BadInput, CheckFailed, did_you_mean
from supancl.evaluation.settings import PROTOCOLS as SETTINGS
from supancl.evaluation.settings import FewShot, FineTune, Settings, Variance
from supancl.reporter import say

if TYPE_CHECKING:
    from supancl.core.encoders import Encoder
    from supancl.evaluation.encoder import EvaluatedEncoder
    from supancl.training.run import Run

EncoderArgument = Union["Run", "Encoder", str, Path]
EncodersArgument = EncoderArgument | list[str] | Sequence[EncoderArgument]
Format = Literal["text", "markdown", "latex", "csv", "json"]


class EncoderOptions(TypedDict, total=False):
    """How encoders are opened and features computed.

    Parameters
    ----------
    layer
        layer whose features are used (default: the encoder's output), or the run's projector
    normalize
        scale features to unit length
    device
        auto, cpu, cuda or cuda:N
    batch_size
        images per forward pass (default 256)
    no_cache
        compute features without the cache
    partial
        accept incomplete benchmark data sets, with a remark
    columns
        columns of a .csv, if they have other names: image=file,label=species[,split=part]
    skip_bad_images
        list unreadable images and leave them out
    size
        side of the encoder's input, if its file does not say
    mean
        mean of the encoder's input per channel, if its file does not say
    std
        standard deviation of the encoder's input per channel, if its file does not say
    branch
        which branch, if a file has both (default online)
    prefix
        prefix of the encoder's tensors, if the format is unknown
    """

    layer: str
    normalize: bool
    device: str
    batch_size: int
    no_cache: bool
    partial: bool
    columns: str
    skip_bad_images: bool
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    branch: Literal["online", "target"]
    prefix: str


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
    from supancl.evaluation.naming import data_names
    from supancl.evaluation.protocols import evaluate
    from supancl.use.describe import describe_figure, print_certainty, print_headline, task_of

    if len(opened) == 1 and not settings.needs_data:
        result = evaluate(opened[0], settings, *sources)
        print_headline(result)
        print_certainty(result)
        return result
    from supancl.evaluation.comparison import check_seeds
    from supancl.reports.score_table import print_score_tables

    check_seeds(opened)
    named = data_names([source or "" for source in sources]) if settings.needs_data else [None]
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
        short = dict(zip(found, data_names(found), strict=True))
        results = [result | {"data": short[result["source"]]} for result in results]
    results = [result | {"task": task_of(result)} for result in results]
    summary = print_score_tables(results, format)
    only_one = len(opened) == 1
    for result in results if format == "text" and not isinstance(settings, FewShot) else ():
        name = f"{result['label'] if only_one else result['encoder']} on {result['data']}"
        say(f"{name}: {describe_figure(result)}")
        print_certainty(result, name)
    return summary


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
    from supancl.evaluation.suite import Plan, make_out_folder, run_suite
    from supancl.reporter import current_reporter
    from supancl.reports.score_table import print_score_tables, write_suite

    plan = Plan(Path(root), tuple(protocols), tuple(sets), neighbours, episode)
    plan.tasks()  # refuses a bad plan before an encoder is opened
    folder = Path(out)
    make_out_folder(folder)
    outcome = run_suite(open_encoders(encoders, options), plan, folder, current_reporter())
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


def open_encoders(
    encoders: Any, options: Mapping[str, Any], *, baselines: bool = False, saves_results: bool = True
) -> list[EvaluatedEncoder]:
    """The encoders; if results are saved in their runs, runs that cannot be written to are refused."""
    from supancl.runs.hub import split_encoder_name

    given = list(encoders) if isinstance(encoders, (list, tuple)) else [encoders]
    for encoder in given:
        if isinstance(encoder, (str, Path)):
            split_encoder_name(str(encoder))  # a file that is missing is refused before torch is imported
    checked(options.get("batch_size", 256), Count, "batch_size")
    from supancl.evaluation.encoder import open_evaluated_encoders

    return open_evaluated_encoders(given, options, baselines, saves_results)


def run_source(encoder: Any, data: str | Path | None, out: str | Path | None, name: str) -> tuple[str, Path]:
    """The data to use and the place to write to: by default the run's data and folder; without a run, this folder."""
    from supancl.runs.folder import RunFolder

    run = RunFolder(Path(str(getattr(encoder, "folder", encoder))))
    if data is None:
        if not run.has_run:
            raise BadInput(f"{encoder} is no run, so it has no images; name data")
        data = run.read_recipe()[0].data.source
    return str(data), Path(out) if out is not None else run.path / name if run.has_run else Path(name)


def select_sources(
    data: list[str] | str | None, root: str | None, sets: Sequence[str], use: Literal["transfer", "few-shot"]
) -> list[str]:
    """The sources of `data`, and the benchmarks that are in `root`."""
    from supancl.data.opening import check_source
    from supancl.data.sources.benchmarks import find_benchmarks, official_name

    if sets and not root:
        raise BadInput("sets names data sets in root; give root too")
    selected = [data] if isinstance(data, str) else list(data or ())
    if not selected and not root:
        raise BadInput(f"name data to evaluate on: data, or root, a folder with data sets for {use}")
    for source in selected:
        check_source(source)
    if root:
        present = find_benchmarks(root, use)
        requested = [official_name(name) for name in sets] or present
        if not requested:
            raise BadInput(f"no data set for {use} is in {root}; supancl data check NAME describes the layout")
        for name in requested:
            if name not in present:
                raise BadInput(f"{name} is not in {root}; see: supancl data check {name}")
        selected += [f"{name}@{root}" for name in requested]
    return list(dict.fromkeys(selected))


def check_above(value: float, limit: float, name: str) -> None:
    """Refuse a value that is not above the limit, and nan."""
    if not value > limit:
        raise BadInput(f"{name} = {value:g}: must be above {limit:g}")
