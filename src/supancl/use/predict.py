"""`predict`: labels for images, each with a confidence and whether it is unlike anything seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from supancl.data.opening import check_source
from supancl.data.views.evaluation import View
from supancl.errors import BadInput, plural
from supancl.files import Output
from supancl.reporter import say, warn
from supancl.reports.prediction_table import write_predictions
from supancl.use.evaluate import EncoderArgument, EncoderOptions, check_above, open_encoders, run_source


def predict(
    encoder: EncoderArgument,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    classifier: str | None = None,
    references: str | None = None,
    k: int | None = None,
    all: bool = False,
    view: View = "margin",
    **options: Unpack[EncoderOptions],
) -> dict[str, Any]:
    """Label images with a run or a trained network, and write a table.

    The table is a source itself: `supancl pretrain --data labels.csv`.

    Parameters
    ----------
    encoder
        a run folder, an encoder.safetensors, timm:NAME, NAME@FILE, or a checkpoint of another library
    data
        images to label (default: the run's data)
    out
        the .csv to write (default: labels.csv in the run folder)
    classifier
        linear (default), knn, means (for classes of very different size), finetuned, or the folder of a fine-tuned
        classifier
    references
        labelled images to learn from (default: those of the run, else the labelled ones of data)
    k
        nearest neighbours that vote, with knn (default: as for evaluate knn)
    all
        predict images that have a label too
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer

    Returns
    -------
    dict
        how many labels were predicted, the expected accuracy, and the path of the table

    Examples
    --------
    $ supancl predict runs/photos
    $ supancl predict runs/photos --data more --out more.csv
    """
    source, table = run_source(encoder, data, out, "labels.csv")
    output = Output(table, (".csv",)).check()
    for name in (source, references):
        if name is not None and "@" not in name:
            check_source(name)
    if k is not None:
        check_above(k, 0, "k")
        if classifier not in (None, "knn"):
            raise BadInput(f"k = {k}: only for classifier knn; leave it out")
    (evaluated,) = open_encoders(encoder, options, saves_results=False)
    from supancl.evaluation.predicting import PredictSettings, predict_labels
    from supancl.reports.verdict import judge_result

    settings = PredictSettings("knn" if k is not None else classifier, references, k, all, view)
    predictions = predict_labels(evaluated, source, settings)
    changed = write_predictions(predictions, output)
    result = {"out": str(table), **predictions.summary}
    for line in describe(result):
        say(line)
    quality = judge_result(result)
    if quality is not None and not quality.is_above_chance:
        warn(f"{table}: these labels are {quality.text}; label more images, or name another encoder")
    if changed:
        warn(f"{table}: names written with escapes: {changed}; rename these files to use the table as data")
    if predictions.unreadable_classes:
        warn(
            f"{table}: read as data, it would lack the class {predictions.unreadable_classes[0]!r}: a ';' separates "
            "labels, spaces around a name are cut off, and -1 is no label; rename the class first"
        )
    if not predictions.has_files:
        say(f"the images of {source} are no files, so {table} cannot be used as data")
    return result


def describe(result: dict[str, Any]) -> list[str]:
    """What is in the table, what its confidence means, and how many images are unlike the references."""
    names = {"knn": f"k-NN, k = {result.get('k')}", "means": "nearest class mean"}
    name = names.get(result["classifier"], result["classifier"])
    given = f", {result['given']} had a label" if result["given"] else ""
    lines = [f"{result['out']}: labels of {plural(result['predicted'], 'image')} predicted ({name}){given}"]
    if "label_threshold" in result:
        lines += describe_several(result)
    if result["checked_on"]:
        key, what = ("accuracy", "") if "accuracy" in result else ("least_sure_right", "least sure label ")
        chance = f", chance {result['chance']:.1f}%" if "chance" in result else ""
        low, high = result[f"{key}_interval"]
        right = f"{what}{result[key]:.1f}% [{low:.1f}, {high:.1f}]"
        how = "labelled images, cross-validated" if result.get("cross_validated") else "held-out images"
        lines.append(
            f"expected: {right} right{chance} ({result['checked_on']} {how}); "
            f"mean confidence {result['mean_confidence']:.1f}%"
        )
    else:
        lines.append("confidence: not fitted, because no labelled image was held out; do not take it for a probability")
    limit = f"cosine to the nearest reference below {result['threshold']:.3f}"
    lines.append(f"unlike anything seen: {plural(result['unlike'], 'image')} ({limit})")
    if "compared" in result:
        fitted = "; the classifier was fitted on some of them, so this is no accuracy" * result["fitted_on_some"]
        lines.append(
            f"{result['agreeing']} of {plural(result['compared'], 'labelled image')} predicted as given{fitted}"
        )
    return lines


def describe_several(result: dict[str, Any]) -> list[str]:
    """From which probability on a class is a label, and how good the labels of held-out images are."""
    images = plural(result["checked_on"], "held-out image")
    lines = [f"labels: classes of probability {result['label_threshold']:g} or more, at least one"]
    if result["checked_on"]:
        values = [
            f"{name} {result[key]:.1f}% [{result[f'{key}_interval'][0]:.1f}, {result[f'{key}_interval'][1]:.1f}]"
            for name, key in (("mAP", "map"), ("F1", "f1"))
        ]
        lines.append(f"{', '.join(values)} of {images}")
    return lines
