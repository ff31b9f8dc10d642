"""`evaluate`: what a frozen or fine-tuned encoder's features are worth, by one protocol or several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from typing_extensions import TypedDict, Unpack

from supancl.config import PYTHON
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, CheckFailed, did_you_mean, plural
from supancl.reporter import say, show

if TYPE_CHECKING:
    from supancl.core.encoders import Encoder
    from supancl.evaluation import EvaluatedEncoder
    from supancl.training.run import Run

EncoderArgument = Union["Run", "Encoder", str, Path]
EncodersArgument = EncoderArgument | list[str] | Sequence[EncoderArgument]
Split = Literal["held-out", "test"]
Format = Literal["text", "markdown", "latex", "csv", "json"]
NOT_MEASURABLE = "not measurable"


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
    split
        evaluated images; held-out: val, else test, else a tenth of train
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer
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


def knn(
    encoders: EncodersArgument,
    *,
    data: str | None = None,
    split: Split = "held-out",
    k: tuple[int, ...] | int | None = None,
    temperature: float = 0.1,
    metric: Literal["cosine", "l2"] = "cosine",
    leave_one_out: bool = False,
    view: View = "margin",
    no_baselines: bool = False,
    format: Format = "text",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Classify images by their k nearest neighbours among the training images.

    Parameters
    ----------
    k
        neighbours; of several, the first is the result (default: 20, or a quarter of the references per class if that
        is less)
    temperature
        of the neighbours' votes
    metric
        how features are compared
    leave_one_out
        use the evaluated images as references for one another

    Examples
    --------
    $ supancl evaluate knn runs/photos --k 20,5
    $ supancl evaluate knn runs/a runs/b --data photos --format markdown
    """
    from supancl.evaluation import evaluate_knn
    from supancl.evaluation.describe import describe_at_k, print_certainty
    from supancl.probes.knn import DEFAULT_K

    ks = check_counts((k,) if isinstance(k, int) else k, "k")
    check_above(temperature, 0, "temperature")
    opened = open_encoders(encoders, options, baselines=not no_baselines)

    def measure(evaluated: EvaluatedEncoder) -> dict[str, Any]:
        return evaluate_knn(evaluated, data, ks, temperature, metric, leave_one_out, split, view)

    if len(opened) > 1:
        return compare_encoders(opened, "k-NN (k = {k})", measure, format)
    result = measure(*opened)
    if ks is None and result["k"] < DEFAULT_K:
        say(f"k = {result['k']}: a quarter of the references per class (k sets another)")
    for number in result["by_k"]:
        figure, references = describe_at_k(result, number), result["references"]
        say(f"k-NN (k = {number}): {figure}, {references} references, {result['classes']} classes")
    print_certainty(result)
    return result


def linear(
    encoders: EncodersArgument,
    *,
    data: str | None = None,
    split: Split = "held-out",
    probe: Literal["lbfgs", "sgd"] = "lbfgs",
    augmented: bool = False,
    epochs: int | None = None,
    lr: float | None = None,
    probe_batch: int | None = None,
    seed: int = 0,
    view: View = "margin",
    no_baselines: bool = False,
    format: Format = "text",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Train a linear classifier on frozen features.

    Parameters
    ----------
    probe
        lbfgs: fast and convex; sgd: as in the paper
    augmented
        sgd on random crops, encoded again every epoch
    epochs
        of sgd (100); the learning rate drops at 60% and 80%
    lr
        learning rate of sgd for a batch of 256 (30)
    probe_batch
        batch size of sgd (256)
    seed
        of the images held out of training, and of sgd

    Examples
    --------
    $ supancl evaluate linear runs/photos
    $ supancl evaluate linear runs/a runs/b --probe sgd
    """
    from supancl.evaluation import SgdSettings, evaluate_linear
    from supancl.evaluation.describe import describe_figure, describe_ridge, print_certainty

    given = {"epochs": epochs, "lr": lr, "batch_size": probe_batch}
    overrides = {name: value for name, value in given.items() if value is not None}
    for name, value in overrides.items():
        check_above(value, 0, name)
    if probe == "lbfgs" and (overrides or augmented):
        names = ", ".join([*overrides, *["augmented"] * augmented])
        raise BadInput(f"{names}: only for probe sgd, lbfgs has no such setting; give probe sgd, or leave it out")
    check_above(seed, -1, "seed")
    sgd = SgdSettings(augmented=augmented, **overrides) if probe == "sgd" else None  # type: ignore[arg-type]
    opened = open_encoders(encoders, options, baselines=not no_baselines)

    def measure(evaluated: EvaluatedEncoder) -> dict[str, Any]:
        return evaluate_linear(evaluated, data, sgd, seed, split, view)

    if len(opened) > 1:
        return compare_encoders(opened, "linear", measure, format)
    result = measure(*opened)
    method = describe_ridge(result) if probe == "lbfgs" else f"epochs of SGD: {result['epochs']}"
    say(f"linear ({method}): {describe_figure(result)}, {result['classes']} classes")
    print_certainty(result)
    return result


def variance(
    encoder: EncoderArgument,
    *,
    data: str | None = None,
    split: Literal["held-out", "test", "train"] = "held-out",
    view: View = "margin",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Measure variance within classes, effective rank and neural collapse.

    Parameters
    ----------
    encoder
        one of those that evaluate takes

    Examples
    --------
    $ supancl evaluate variance runs/photos
    $ supancl evaluate variance runs/photos --layer projector --split train
    """
    from supancl.evaluation import evaluate_variance
    from supancl.reports.tables import plain_table

    (evaluated,) = open_encoders(encoder, options)
    result = evaluate_variance(evaluated, data, split, view)
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
    cells = [[name, NOT_MEASURABLE if value is None else f"{value:.4g}"] for name, value in rows]
    show(plain_table(f"{result['images']} {result['split']} images", ["measure", "value"], cells))
    if result["within"] is None:
        say("every class has one image, so nothing within classes can be measured")
    measurable = {name: value for name, value in result["spread"].items() if value is not None}
    widest = sorted(measurable.items(), key=lambda item: -item[1])
    if widest:
        say("widest classes: " + ", ".join(f"{name} {value:.3f}" for name, value in widest[:5]))
    return result


def transfer(
    encoders: EncodersArgument,
    *,
    data: list[str] | str | None = None,
    root: str | None = None,
    sets: tuple[str, ...] = (),
    metric: Literal["top-1", "mean-per-class"] | None = None,
    no_baselines: bool = False,
    format: Format = "text",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Transfer to other data sets by logistic regression, as in App. E.

    Parameters
    ----------
    metric
        default: the benchmark's, or top-1

    Examples
    --------
    $ supancl evaluate transfer runs/photos --data other
    $ supancl evaluate transfer runs/a runs/b --root benchmarks --sets pets,dtd
    """
    from supancl.evaluation import evaluate_transfer
    from supancl.evaluation.naming import data_names

    sources = select_sources(data, root, sets, "transfer")
    opened = open_encoders(encoders, options, baselines=not no_baselines)
    tasks = [
        ("transfer", name, partial(evaluate_transfer, source=source, metric=metric, name=name))
        for name, source in zip(data_names(sources), sources, strict=True)
    ]
    return print_with_certainty(measure_all(opened, tasks), format)


def fewshot(
    encoders: EncodersArgument,
    *,
    data: list[str] | str | None = None,
    root: str | None = None,
    sets: tuple[str, ...] = (),
    ways: int = 5,
    shots: tuple[int, ...] = (1, 5),
    queries: int = 16,
    fill_queries: bool = False,
    episodes: int = 2000,
    seed: int = 0,
    format: Format = "text",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Measure N-way K-shot episodes on other data sets.

    Parameters
    ----------
    ways
        classes per episode
    shots
        labelled images per class
    queries
        query images per class
    fill_queries
        draw queries of classes with few images with replacement, as in the authors' code
    episodes
        number of episodes
    seed
        of the episodes, which are the same for every encoder

    Examples
    --------
    $ supancl evaluate fewshot runs/photos --data other --shots 1,5
    $ supancl evaluate fewshot runs/a runs/b --root benchmarks
    """
    from supancl.evaluation import EpisodeSettings, evaluate_few_shot
    from supancl.evaluation.naming import data_names

    counts = check_episodes(ways, shots, episodes, seed)
    check_above(queries, 0, "queries")
    sources = select_sources(data, root, sets, "few-shot")
    opened = open_encoders(encoders, options)
    tasks = []
    for name, source in zip(data_names(sources), sources, strict=True):
        for count in counts:
            settings = EpisodeSettings(ways, count, queries, episodes, seed, fill_queries)
            run = partial(evaluate_few_shot, source=source, settings=settings, name=name, most_shots=max(counts))
            tasks.append((f"fewshot {ways}w{count}s", name, run))
    return print_results(measure_all(opened, tasks), format)


def finetune(
    encoder: EncoderArgument,
    *,
    data: str | None = None,
    split: Split = "held-out",
    epochs: int = 20,
    train_batch: int = 64,
    lr: tuple[float, ...] | float = (0.01, 0.1, 1.0),
    weight_decay: float = 1e-4,
    seed: int = 0,
    views: Literal["crops", "pretraining"] = "crops",
    freeze_norm: bool = False,
    probe_first: bool = False,
    out: str | Path | None = None,
    no_baselines: bool = False,
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Train the encoder and a new classifier together.

    Parameters
    ----------
    encoder
        one of those that evaluate takes
    epochs
        passes over the training images
    train_batch
        images per step
    lr
        learning rates; of several, the best on held-out training images is used
    weight_decay
        of all weights
    seed
        of the order, the views and the classifier
    views
        random crops, or pretraining: colours too
    freeze_norm
        batch norm keeps the encoder's statistics
    probe_first
        start from the linear classifier on the encoder
    out
        folder for the fine-tuned encoder and its classifier

    Examples
    --------
    $ supancl evaluate finetune runs/photos --out runs/tuned
    $ supancl evaluate finetune timm:resnet18 --data photos --epochs 10
    """
    from supancl.evaluation import FineTuning, evaluate_finetuning
    from supancl.evaluation.describe import describe_figure, print_certainty
    from supancl.evaluation.finetune import check_whole_encoder

    rates = (lr,) if isinstance(lr, (int, float)) else tuple(dict.fromkeys(lr))
    for name, value, least in (("epochs", epochs, 0), ("train_batch", train_batch, 1), ("seed", seed, -1)):
        check_above(value, least, name)  # batch norm needs two images
    for rate in rates:
        check_above(rate, 0, "lr")
    if weight_decay < 0:
        raise BadInput(f"weight_decay = {weight_decay:g}: must be at least 0")
    check_whole_encoder(options.get("layer", "pooled"), options.get("normalize", False))
    (evaluated,) = open_encoders(encoder, options, baselines=not no_baselines)
    chosen: Any = {"views": views, "freeze_norm": freeze_norm, "probe_first": probe_first}
    settings = FineTuning(epochs, train_batch, rates, weight_decay, seed, **chosen)
    result = evaluate_finetuning(evaluated, data, settings, None if out is None else Path(out), split)
    mean = result["mean_per_class"]
    say(f"fine-tuned (lr {result['lr']:g}, {epochs} epochs): {describe_figure(result)}, mean per class {mean:.2f}%")
    print_certainty(result)
    return result


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
    from supancl.evaluation import Plan, run_suite
    from supancl.evaluation.suite import make_out_folder
    from supancl.reporter import current_reporter
    from supancl.reports.score_table import write_suite

    check_above(k, 0, "k")
    counts = check_episodes(ways, shots, episodes, seed)
    plan = Plan(
        Path(root),
        list(protocols),
        list(sets),
        ways,
        counts,
        episodes=episodes,
        seed=seed,
        k=k,
        fill_queries=fill_queries,
    )
    plan.tasks()  # refuses a bad plan before an encoder is opened
    folder = Path(out)
    make_out_folder(folder)
    outcome = run_suite(open_encoders(encoders, options), plan, folder, current_reporter())
    if not outcome.results:
        raise BadInput(
            f"nothing could be measured; the first of {len(outcome.failures)} reasons: {outcome.failures[0]['why']}"
        )
    summary = print_results(outcome.results, "text") | {"failures": outcome.failures}
    path = write_suite(outcome.results, summary, folder)
    say(f"{path}, with the tables as Markdown, LaTeX and csv beside it")
    if outcome.failures:
        total = plural(len(outcome.failures) + len(outcome.results), "result")
        raise Incomplete(
            f"{len(outcome.failures)} of {total} could not be measured (see the warnings); the others are in {folder}; "
            "run the same command again to continue",
            summary,
        )
    return summary


PROTOCOLS: dict[str, Callable[..., dict[str, Any]]] = {
    "knn": knn,
    "linear": linear,
    "transfer": transfer,
    "fewshot": fewshot,
    "variance": variance,
    "finetune": finetune,
    "suite": suite,
}


# --- encoders, sources and tables -------------------------------------------------------------------------------------


def open_encoders(
    encoders: Any, options: EncoderOptions, *, baselines: bool = False, saves_results: bool = True
) -> list[EvaluatedEncoder]:
    """The encoders; if results are saved in their runs, runs that cannot be written to are refused."""
    from supancl.runs.hub import split_encoder_name

    given = list(encoders) if isinstance(encoders, (list, tuple)) else [encoders]
    for encoder in given:
        if isinstance(encoder, (str, Path)):
            split_encoder_name(str(encoder))  # a file that is missing is refused before torch is imported
    check_above(options.get("batch_size", 256), 0, "batch_size")
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


def compare_encoders(
    encoders: Sequence[EvaluatedEncoder],
    title: str,
    measure: Callable[[EvaluatedEncoder], dict[str, Any]],
    form: Format,
) -> dict[str, Any]:
    """Measure each encoder, on `data` or on its own run's data, and print one table; `title` may name result keys."""
    from supancl.evaluation.comparison import check_seeds
    from supancl.evaluation.naming import data_names

    check_seeds(encoders)
    results = [measure(evaluated) | {"group": evaluated.group} for evaluated in encoders]
    sources = list(dict.fromkeys(result["source"] for result in results))
    names = dict(zip(sources, data_names(sources), strict=True))
    results = [result | {"data": names[result["source"]], "task": title.format_map(result)} for result in results]
    return print_with_certainty(results, form)


def print_with_certainty(results: list[dict[str, Any]], form: Format) -> dict[str, Any]:
    """Print the tables, and as text for each encoder and data set how much its accuracy says."""
    from supancl.evaluation.describe import describe_figure, print_certainty

    summary = print_results(results, form)
    only_one = len({result["encoder"] for result in results}) == 1
    for result in results if form == "text" else ():
        name = f"{result['label'] if only_one else result['encoder']} on {result['data']}"
        say(f"{name}: {describe_figure(result)}")
        print_certainty(result, name)
    return summary


def measure_all(encoders: Sequence[EvaluatedEncoder], tasks: Sequence[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    """Run every task with every encoder; images decoded for one encoder are reused by the next."""
    from supancl.evaluation.comparison import check_seeds

    check_seeds(encoders)
    return [
        run_protocol(evaluated) | {"task": protocol, "data": data, "group": evaluated.group}
        for protocol, data, run_protocol in tasks
        for evaluated in encoders
    ]


def print_results(results: list[dict[str, Any]], form: Format) -> dict[str, Any]:
    """Print the tables, and as text also the paired differences; returns all of it."""
    from supancl.reports.score_table import print_score_tables

    return print_score_tables(results, form)


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


def check_episodes(ways: int, shots: Sequence[int], episodes: int, seed: int) -> list[int]:
    """Refuse bad settings of episodes, before an encoder is opened; returns the shots."""
    for name, value, least in (("ways", ways, 1), ("episodes", episodes, 0), ("seed", seed, -1)):
        check_above(value, least, name)
    return check_counts(shots, "shots") or []


def check_counts(values: Sequence[int] | None, name: str) -> list[int] | None:
    """Whole numbers of at least 1, without repetitions."""
    for value in values or ():
        check_above(value, 0, name)
    return None if values is None else list(dict.fromkeys(values))


def check_above(value: float, limit: float, name: str) -> None:
    """Refuse a value that is not above the limit, and nan."""
    if not value > limit:
        raise BadInput(f"{name} = {value:g}: must be above {limit:g}")
