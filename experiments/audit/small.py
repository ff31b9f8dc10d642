"""Wrong labels that need no GPU: those of the digits, and of points in clusters; the first two tables of docs/audit.md.

    python -m experiments.audit.small --work DIR [--only digits clusters] [--update docs/audit.md]

Encoders are trained on the wrong labels themselves, for ten epochs on a CPU, and their features are kept in DIR, so
that another rule judges the same ones. Results are written to experiments/results/audit/small.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from experiments.audit.ranking import roc_area
from supancl.cli.arguments.audit import LEAST_LEAD
from supancl.data.label_noise import NoiseKind, flip_labels
from supancl.data.opening import from_arrays
from supancl.data.splits import DataSpec
from supancl.files import replace_section, write_json
from supancl.probes.features import Features, embed
from supancl.probes.label_scores import label_scores, share_of_wrong_labels
from supancl.probes.linear import fixed_ridge_accuracy, hold_out
from supancl.probes.precision import average_precision
from supancl.recipes import recipe
from supancl.training.pretrain import pretrain
from supancl.weights.encoder_file import load_encoder
from supancl.weights.provenance import versions

RESULTS = Path(__file__).parents[1] / "results" / "audit" / "small"
EPOCHS, SEEDS, CLASSES = 10, (0, 1), 10
NOISE: tuple[tuple[float, NoiseKind], ...] = (
    (0.0, "symmetric"), (0.05, "symmetric"), (0.2, "symmetric"), (0.4, "symmetric"), (0.2, "pair"),
)  # fmt: skip
DRAWINGS = 20
POINTS, DIMENSIONS = 3000, 32
CLUSTERS = {  # classes, and the deviation of a point from the centre of its class
    "10 clusters": (10, 1.6), "10 clusters, wider": (10, 2.2), "100 clusters of 30 points": (100, 1.6),
}  # fmt: skip


POOR_DRAWINGS = 40
POOR = {  # classes, points, deviation
    "4 clusters of 100 points": (4, 400, 6.0), "2 clusters of 150 points": (2, 300, 6.0),
    "2 clusters of 500 points": (2, 1000, 6.0), "10 clusters of 100 points": (10, 1000, 4.0),
}  # fmt: skip


def digit_images() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    return (digits.images * 15.9375).astype(np.uint8), digits.target


def trained_features(method: str, noisy: Tensor, seed: int, folder: Path) -> Tensor:
    """Features of all digits by an encoder that was trained on these labels; kept in the folder."""
    kept = folder / "features.pt"
    if not kept.exists():
        data = from_arrays(digit_images()[0], noisy.numpy(), spec=DataSpec("arrays", holdout=0))
        settings = {
            "train.epochs": EPOCHS, "train.seed": seed, "train.device": "cpu", "train.monitor_every": 0,
            "train.checkpoint_epochs": EPOCHS,
        }  # fmt: skip
        if not (folder / "run" / "finished.json").exists():
            pretrain(recipe(f"digits.{method}").with_set(settings), data, folder / "run")
        values, _ = embed(load_encoder(folder / "run"), data.train, torch.device("cpu"))
        torch.save(values, kept)
    loaded: Tensor = torch.load(kept, weights_only=True)
    return loaded


def judge(values: Tensor, noisy: Tensor, truth: Tensor) -> dict[str, Any]:
    """How well wrong labels are found and counted."""
    is_wrong = noisy != truth
    scores = label_scores(Features(values, noisy))
    share = share_of_wrong_labels(scores)
    assert share is not None
    corrected = scores.suggested_score - scores.score >= LEAST_LEAD
    found: dict[str, Any] = {
        "wrong": 100 * float(is_wrong.double().mean()), "share": list(share.percent), "agreement": share.agreement.mean,
        "is_given": share.is_reliable,
        "suspects": int(scores.is_suspect.sum()), "judged": len(noisy), "corrected": int(corrected.sum()),
        "corrected_were_wrong": int((corrected & is_wrong).sum()),
    }  # fmt: skip
    if bool(is_wrong.any()):
        found |= {
            "roc_area": roc_area(-scores.score, is_wrong),
            "average_precision": average_precision(-scores.score, is_wrong),
            "suggested_right": 100 * float((scores.suggested == truth)[is_wrong].double().mean()),
        }
    return found


def judge_digits(work: Path) -> Iterator[dict[str, Any]]:
    truth = torch.from_numpy(digit_images()[1])
    for method, (fraction, kind), seed in product(("supsiam", "simsiam"), NOISE, SEEDS):
        noisy = flip_labels(truth, CLASSES, fraction, kind, seed)
        values = trained_features(method, noisy, seed, work / f"{method}-{kind}-{fraction:g}-{seed}")
        yield {"method": method, "noise": fraction, "kind": kind, "seed": seed, **judge(values, noisy, truth)}


def cluster_points(classes: int, deviation: float, points: int = POINTS, seed: int = 0) -> Features:
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(points) % classes
    centres = torch.randn(classes, DIMENSIONS, generator=chance)
    return Features(centres[labels] + deviation * torch.randn(points, DIMENSIONS, generator=chance), labels)


def judge_clusters() -> Iterator[dict[str, Any]]:
    images, target = digit_images()
    pixels = Features(torch.from_numpy(images).flatten(1).float(), torch.from_numpy(target))
    points = {name: cluster_points(*shape) for name, shape in CLUSTERS.items()}
    for (name, (values, truth)), fraction in product(
        {"pixels of the digits": pixels, **points}.items(), (0.0, 0.05, 0.2, 0.4)
    ):
        classes, tested = int(truth.max()) + 1, hold_out(truth, 0.2)
        noisy = [flip_labels(truth, classes, fraction, seed=seed) for seed in range(DRAWINGS if fraction else 1)]
        yield {
            "features": name, "noise": fraction, "drawings": [judge(values, labels, truth) for labels in noisy],
            "accuracy": fixed_ridge_accuracy(
                Features(values[~tested], truth[~tested]), Features(values[tested], truth[tested])
            ),
        }  # fmt: skip


def judge_poor() -> Iterator[dict[str, Any]]:
    """Labels that are all right, of features that hardly separate the classes: no share should be told."""
    images, target = digit_images()
    pixels = torch.from_numpy(images).flatten(1).float()
    for name, (classes, points, deviation) in POOR.items():
        drawings = []
        for seed in range(POOR_DRAWINGS):
            values, truth = cluster_points(classes, deviation, points, seed)
            drawings.append(judge(values, truth, truth))
        yield {"features": name, "drawings": drawings}
    coins = []
    for seed in range(POOR_DRAWINGS):
        labels = (torch.rand(len(target), generator=torch.Generator().manual_seed(seed)) < 0.2).long()
        coins.append(judge(pixels, labels, labels))
    yield {"features": "pixels of the digits, labels by lot, 4 to 1", "drawings": coins}


def digits_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| Recipe | Wrong | AUROC | Average precision | Suggested label right | Replaced, of these wrong | Estimate |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, (fraction, kind) in product(("supsiam", "simsiam"), NOISE):
        seeds = [row for row in rows if (row["method"], row["noise"], row["kind"]) == (method, fraction, kind)]
        cells = [
            f"{100 * fraction:g}%" + (" pair" if kind == "pair" else ""),
            *(
                ", ".join(form(row[key]) if key in row else "-" for row in seeds)
                for key, form in (
                    ("roc_area", "{:.3f}".format), ("average_precision", "{:.3f}".format),
                    ("suggested_right", "{:.0f}%".format),
                )
            ),
            ", ".join(f"{row['corrected']}: {row['corrected_were_wrong']}" for row in seeds),
            ", ".join("{:.1f} [{:.1f}, {:.1f}]".format(*row["share"]) for row in seeds),
        ]  # fmt: skip
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def clusters_table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean error of the estimated share in points, how often its interval held the truth, and the least agreement."""
    fractions = sorted({row["noise"] for row in rows})
    lines = [
        "| Features | Linear accuracy | " + " | ".join(f"{100 * fraction:g}% wrong" for fraction in fractions) + " |",
        "|---" * (2 + len(fractions)) + "|",
    ]
    for name in dict.fromkeys(row["features"] for row in rows):
        of_name = sorted((row for row in rows if row["features"] == name), key=lambda row: row["noise"])
        cells = []
        for row in of_name:
            errors = [found["share"][0] - found["wrong"] for found in row["drawings"]]
            held = [found["share"][1] <= found["wrong"] <= found["share"][2] for found in row["drawings"]]
            agreement = min(found["agreement"] for found in row["drawings"])
            cells.append(f"{np.mean(errors):+.1f}, {100 * np.mean(held):.0f}%, {agreement:.2f}")
        lines.append(f"| {name} | {of_name[0]['accuracy']:.0f}% | {' | '.join(cells)} |")
    return "\n".join(lines)


def poor_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| Features | Suspects | Share is given | Its lower end is above 3% |",
        "|---|---|---|---|",
    ]
    for row in rows:
        found = row["drawings"]
        given = [drawing for drawing in found if drawing["is_given"]]
        suspects = np.mean([drawing["suspects"] / drawing["judged"] for drawing in found])
        above = sum(drawing["share"][1] > 3 for drawing in given)
        lines.append(f"| {row['features']} | {100 * suspects:.0f}% | {len(given)} of {len(found)} | {above} |")
    return "\n".join(lines)


TABLES = {"digits": digits_table, "clusters": clusters_table, "poor": poor_table}


def read_rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="keeps runs and features")
    parser.add_argument("--only", nargs="*", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--update", type=Path, help="the Markdown file of these tables")
    args = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        judged = {"digits": lambda: judge_digits(args.work), "clusters": judge_clusters, "poor": judge_poor}
        rows = list(judged[name]())
        write_json(RESULTS / f"{name}.json", {"rows": rows, "versions": versions()})
        print(TABLES[name](rows), flush=True)
        if args.update:
            replace_section(args.update, f"audit {name}", f"{TABLES[name](rows)}\n")


if __name__ == "__main__":
    main()
