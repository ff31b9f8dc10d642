"""`supancl predict`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from supancl.cli.encoders import check_at_least, open_encoders
from supancl.errors import BadInput, plural
from supancl.evaluate.predicting import PredictSettings, predict_labels
from supancl.reports.prediction_table import write_predictions


def command(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    out = Path(args.out)
    if args.k is not None:
        check_at_least(args.k, 1, "--k")
        if args.classifier not in (None, "knn"):
            raise BadInput(f"--k {args.k}: only for --with knn; leave it out")
    (evaluated,) = open_encoders(args, console, saves_results=False)
    settings = PredictSettings(
        "knn" if args.k is not None else args.classifier, args.references, args.k, args.all, args.view
    )
    predictions = predict_labels(evaluated, args.data, settings)
    changed = write_predictions(predictions, out)
    result = {"out": str(out), **predictions.summary}
    for line in describe(result):
        console.print(line)
    if changed:
        evaluated.reporter.warn(
            f"{out}: {plural(changed, 'name has', 'names have')} characters that a table cannot hold and "
            f"{'is' if changed == 1 else 'are'} written with escapes; rename the files to use it as --data"
        )
    if predictions.unreadable_classes:
        evaluated.reporter.warn(
            f"{out}: read as --data, the table would not have the class {predictions.unreadable_classes[0]!r}: a ';' "
            "separates labels, spaces around a name are cut off, and -1 is no label; rename it first"
        )
    if not predictions.has_files:
        console.print(f"the images of {args.data} are no files, so {out} cannot be used as --data")
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
