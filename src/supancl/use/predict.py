"""`predict`: labels for images, each with a confidence and whether it is unlike anything seen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from supancl.config import Count, checked
from supancl.data.views.render import View
from supancl.files import Output, escape_formula, path_in_table
from supancl.reporter import say, warn
from supancl.use import (
    EncoderArgument,
    EncoderOptions,
    check_named_source,
    open_encoders,
    run_source,
    write_csv,
)

COLUMNS = ("path", "label", "confidence", "unlike", "source", "split")


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

    Images unlike anything seen come first in it. The table is a source itself: `supancl pretrain --data labels.csv`.

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
    if references is not None:
        check_named_source(references)
    if k is not None:
        checked(k, Count, "k")
    (evaluated,) = open_encoders(encoder, options, saves_results=False)
    from supancl.reports.verdict import quality_of_result
    from supancl.use.predicting import PredictSettings, predict_labels

    settings = PredictSettings(classifier or (None if k is None else "knn"), references, k, all, view)
    predictions = predict_labels(evaluated, source, settings)
    folder = os.path.join(table.parent.resolve(), "")
    cells = (
        (
            path_in_table(row.path, folder) if predictions.has_files else escape_formula(row.path),
            escape_formula(row.label),
            *(("", "") if row.confidence is None else (f"{row.confidence:.4f}", "yes" if row.unlike else "no")),
            "given" if row.confidence is None else "predicted",
            row.split,
        )
        for row in predictions.rows
    )
    output.write(lambda temporary: write_csv(temporary, COLUMNS, cells))
    result = {"out": str(table), **predictions.summary}
    for line in describe(result):
        say(line)
    quality = quality_of_result(result)
    if quality is not None and not quality.is_above_chance:
        warn(f"{table}: these labels are {quality.text}; label more images, or name another encoder")
    return result


def describe(result: dict[str, Any]) -> list[str]:
    """What is in the table, how often it is expected to be right, and how many images are unlike the references."""
    from supancl.evaluation.results import figure_text

    name = result["classifier"] + (f", k = {result['k']}" if "k" in result else "")
    lines = [f"{result['out']}: labels given: {result['given']}, predicted: {result['predicted']} (classifier: {name})"]
    if result["checked_on"]:
        how = "cross-validated" if result.get("cross_validated") else "held-out"
        f1 = f", F1 {result['f1']:.1f}%" if "f1" in result else ""
        expected = f"expected accuracy: {figure_text(result)}{f1}, chance {result['chance']:.1f}% ({how} images: "
        lines.append(f"{expected}{result['checked_on']}); mean confidence {result['mean_confidence']:.1f}%")
    else:
        lines.append("confidence: not fitted, because no labelled image was held out; do not take it for a probability")
    limit = f"cosine to the nearest below {result['threshold']:.3f}"
    lines.append(f"images unlike all labelled ones: {result['unlike']} ({limit}); they come first in the table")
    if "compared" in result:
        lines.append(f"predicted as given: {result['agreeing']} of {result['compared']} labelled images")
    return lines
