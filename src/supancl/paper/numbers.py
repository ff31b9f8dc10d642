"""The numbers of the paper's tables as printed, with the label each table has in its source.

Columns are named by what is measured: `transfer:pets`, `fewshot:dtd` (5w1s or 5w5s by the section), `linear`, `knn`.
A row that the paper prints in several tables is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Values = tuple[float, ...]
Rows = Mapping[str, Values]

TRANSFER = ("cifar10", "cifar100", "dtd", "food101", "mit67", "sun397", "caltech101", "cub200", "dogs", "flowers102",
            "pets")  # fmt: skip
FEWSHOT = ("aircraft", "cub200", "fc100", "flowers102", "fungi", "omniglot", "dtd", "traffic-signs")
TO_ELEVEN = tuple(f"transfer:{name}" for name in TRANSFER)
AVERAGE, RANK = ("average", *TO_ELEVEN), ("rank", *TO_ELEVEN)
TOY_TRANSFER = tuple(f"{kind} {sigma}" for kind in ("interpolation", "extrapolation") for sigma in (0.2, 0.5, 0.8))
METRICS = ("ssl", "sup", "within", "ratio", "knn", "linear")


class PaperTable(NamedTuple):
    """One table: section -> row -> numbers in the order of the columns; intervals in the same form, if printed."""

    label: str
    columns: tuple[str, ...]
    rows: Mapping[str, Rows]
    intervals: Mapping[str, Rows] = {}

    def numbers(self, section: str, row: str) -> dict[str, tuple[float, float]]:
        """column -> the number and its interval (nan: none printed); empty where the table has no such row."""
        values = self.rows[section].get(row)
        if values is None:
            return {}
        intervals = self.intervals.get(section, {}).get(row, (float("nan"),) * len(values))
        return dict(zip(self.columns, zip(values, intervals, strict=True), strict=True))


NONE = float("nan")

TOY: Mapping[float, Values] = {
    # l_ssl, l_sup, S_W, S_W/S_T %, k-NN, linear; then Table 2
    0.0: (-0.7115, -0.4212, 0.338, 33.94, 60.51, 60.78, 43.60, 37.44, 35.40, 96.67, 83.76, 74.42),
    0.2: (-0.7423, -0.4140, 0.363, 36.36, 61.35, 61.58, 44.02, 37.24, 35.31, 97.13, 84.71, 75.09),
    0.5: (-0.8116, -0.1654, 0.799, 79.97, 61.18, 61.89, 44.25, 37.96, 35.69, 97.60, 85.87, 76.00),
    0.8: (-0.8473, -0.0231, 0.971, 97.14, 55.93, 61.18, 44.24, 37.65, 35.98, 97.07, 83.69, 73.73),
    1.0: (-0.8519, -0.0024, 0.997, 99.70, 38.02, 45.91, 40.40, 36.60, 35.67, 75.84, 59.67, 53.00),
}
METRIC_IMAGENET: Rows = {
    # l_ssl, l_sup, S_W, S_W/S_T %, k-NN, linear
    "alpha-0": (-0.9048, -0.8932, 0.070, 7.01, 80.79, 85.92),
    "alpha-0.2": (-0.9231, -0.9096, 0.057, 5.72, 82.72, 86.85),
    "alpha-0.5": (-0.9321, -0.8823, 0.108, 10.79, 82.89, 87.31),
    "alpha-0.8": (-0.9349, -0.5118, 0.515, 51.58, 80.19, 86.65),
    "alpha-1": (-0.9290, -0.2341, 0.743, 74.53, 75.23, 82.15),
}

LINEAR_AND_DETECTION: Rows = {
    # Top-1 on ImageNet-100; AP and AP50 on VOC
    "simclr": (77.35, 52.06, 78.70),
    "supcon": (87.40, 52.53, 79.44),
    "moco2": (78.37, 52.68, 79.08),
    "supmoco": (86.33, 52.67, 79.52),
    "simsiam": (82.15, 53.56, 79.82),
    "supsiam": (87.31, 53.89, 80.28),
    "byol": (84.93, 53.54, 79.57),
    "supbyol": (87.43, 53.69, 80.26),
}
DETECTION_INTERVALS: Rows = {
    "simclr": (NONE, 0.31, 0.16),
    "supcon": (NONE, 0.47, 0.21),
    "moco2": (NONE, 0.04, 0.24),
    "supmoco": (NONE, 0.04, 0.15),
    "simsiam": (NONE, 0.10, 0.10),
    "supsiam": (NONE, 0.26, 0.06),
    "byol": (NONE, 0.04, 0.01),
    "supbyol": (NONE, 0.24, 0.17),
}

TRANSFER_RESNET: Rows = {
    # the average rank, then the eleven data sets
    "simclr": (7.00, 84.69, 62.86, 64.18, 60.91, 61.81, 47.10, 77.89, 28.76, 44.33, 84.30, 65.10),
    "supcon": (4.73, 88.82, 68.89, 65.18, 59.34, 63.76, 50.09, 87.30, 35.84, 61.68, 89.05, 80.12),
    "moco2": (7.82, 83.43, 61.54, 61.81, 57.36, 59.55, 45.07, 77.26, 27.79, 46.67, 82.35, 68.52),
    "supmoco": (4.09, 89.05, 69.29, 65.44, 59.04, 63.46, 50.05, 87.54, 37.75, 62.80, 89.69, 80.81),
    "simsiam": (4.91, 87.28, 66.41, 66.06, 63.44, 64.68, 50.69, 85.00, 36.10, 54.57, 88.38, 75.13),
    "supsiam": (2.27, 89.95, 70.88, 66.51, 61.46, 64.45, 51.50, 88.86, 43.48, 64.65, 90.27, 82.38),
    "byol": (3.82, 88.26, 68.08, 67.52, 64.63, 65.70, 51.21, 85.85, 37.10, 57.80, 88.14, 78.78),
    "supbyol": (1.36, 90.85, 72.04, 67.38, 64.58, 66.64, 52.95, 88.79, 43.24, 65.02, 91.09, 82.68),
}
TRANSFER_VIT: Rows = {
    "moco3": (4.00, 84.79, 64.66, 60.27, 59.52, 56.34, 45.17, 75.08, 37.10, 44.71, 85.98, 64.87),
    "supmoco": (2.18, 89.68, 71.07, 60.90, 59.84, 59.18, 47.45, 83.13, 47.69, 57.83, 89.35, 77.94),
    "byol": (2.36, 87.61, 66.48, 65.48, 63.36, 59.48, 48.41, 80.69, 41.13, 53.49, 88.32, 75.12),
    "supbyol": (1.45, 90.29, 71.05, 62.87, 61.61, 60.07, 48.36, 84.37, 47.24, 62.03, 90.31, 81.70),
}

# the rows that other tables print again, there with their average in place of the rank
SUPSIAM: Values = (70.40, *TRANSFER_RESNET["supsiam"][1:])
SIMSIAM: Values = (67.07, *TRANSFER_RESNET["simsiam"][1:])
SUPCON: Values = (68.19, *TRANSFER_RESNET["supcon"][1:])

ONE_SHOT: Rows = {
    # the average rank, then the eight data sets
    "simclr": (7.25, 29.22, 40.61, 35.53, 68.26, 42.44, 70.46, 55.43, 48.33),
    "supcon": (3.63, 31.44, 48.75, 45.32, 77.99, 47.42, 80.66, 57.57, 68.66),
    "moco2": (7.38, 25.54, 41.24, 36.73, 66.48, 41.84, 71.12, 54.75, 51.05),
    "supmoco": (3.25, 31.12, 49.04, 44.13, 78.90, 47.12, 83.43, 56.62, 71.17),
    "simsiam": (5.00, 30.67, 45.06, 41.51, 75.68, 45.22, 74.64, 58.28, 60.03),
    "supsiam": (1.88, 33.12, 49.58, 45.56, 78.12, 47.74, 84.02, 58.06, 71.00),
    "byol": (5.63, 26.38, 46.45, 40.92, 74.27, 45.96, 68.13, 59.75, 57.44),
    "supbyol": (2.00, 32.66, 49.26, 45.28, 78.94, 47.81, 82.62, 59.98, 70.34),
}
ONE_SHOT_INTERVALS: Rows = {
    "simclr": (NONE, 0.34, 0.43, 0.37, 0.50, 0.44, 0.54, 0.45, 0.43),
    "supcon": (NONE, 0.35, 0.49, 0.41, 0.44, 0.45, 0.45, 0.47, 0.47),
    "moco2": (NONE, 0.28, 0.46, 0.36, 0.50, 0.44, 0.51, 0.46, 0.43),
    "supmoco": (NONE, 0.35, 0.49, 0.41, 0.43, 0.45, 0.42, 0.46, 0.47),
    "simsiam": (NONE, 0.35, 0.47, 0.40, 0.47, 0.46, 0.50, 0.47, 0.45),
    "supsiam": (NONE, 0.37, 0.49, 0.41, 0.44, 0.46, 0.41, 0.48, 0.48),
    "byol": (NONE, 0.30, 0.49, 0.40, 0.47, 0.46, 0.52, 0.48, 0.46),
    "supbyol": (NONE, 0.37, 0.48, 0.41, 0.43, 0.46, 0.44, 0.48, 0.48),
}
FIVE_SHOT: Rows = {
    "simclr": (7.13, 39.21, 54.33, 50.96, 86.98, 59.40, 86.72, 73.95, 69.27),
    "supcon": (3.38, 44.63, 64.99, 64.04, 92.80, 66.75, 93.36, 75.60, 85.93),
    "moco2": (7.50, 32.84, 53.42, 52.70, 84.72, 57.54, 87.74, 72.66, 71.93),
    "supmoco": (2.63, 44.43, 65.63, 64.30, 93.35, 66.64, 94.77, 74.73, 87.64),
    "simsiam": (5.25, 40.34, 60.66, 58.68, 91.04, 62.19, 88.92, 76.22, 79.50),
    "supsiam": (2.38, 45.98, 66.70, 64.54, 92.42, 66.61, 94.38, 76.43, 86.88),
    "byol": (5.38, 35.30, 60.96, 59.33, 90.38, 63.12, 85.68, 77.60, 77.07),
    "supbyol": (2.38, 45.81, 66.72, 65.72, 92.78, 66.47, 94.06, 77.57, 86.21),
}
FIVE_SHOT_INTERVALS: Rows = {
    "simclr": (NONE, 0.44, 0.45, 0.37, 0.30, 0.47, 0.35, 0.36, 0.40),
    "supcon": (NONE, 0.44, 0.46, 0.39, 0.23, 0.47, 0.25, 0.36, 0.36),
    "moco2": (NONE, 0.35, 0.47, 0.36, 0.32, 0.48, 0.34, 0.37, 0.39),
    "supmoco": (NONE, 0.44, 0.46, 0.39, 0.21, 0.47, 0.22, 0.36, 0.34),
    "simsiam": (NONE, 0.44, 0.48, 0.38, 0.26, 0.49, 0.32, 0.36, 0.39),
    "supsiam": (NONE, 0.47, 0.45, 0.39, 0.23, 0.48, 0.23, 0.36, 0.36),
    "byol": (NONE, 0.40, 0.49, 0.38, 0.26, 0.49, 0.35, 0.36, 0.40),
    "supbyol": (NONE, 0.48, 0.46, 0.38, 0.22, 0.48, 0.24, 0.36, 0.37),
}

# the average, then the eleven data sets
POOL_DESIGN: Rows = {
    "queue": SUPSIAM,
    "class-queues-80": (70.21, 89.78, 70.58, 66.49, 61.54, 64.85, 51.22, 88.64, 42.68, 65.03, 89.86, 81.61),
    "class-queues-20": (70.44, 90.02, 71.07, 66.92, 61.49, 65.11, 51.15, 88.67, 43.19, 65.16, 89.27, 82.39),
    "class-queues-5": (70.27, 89.67, 70.88, 66.17, 61.32, 64.30, 51.49, 88.96, 42.80, 64.82, 89.86, 82.75),
    "class-queues-1": (70.23, 89.70, 70.73, 66.06, 61.45, 64.82, 51.02, 88.97, 43.42, 64.26, 89.71, 82.37),
    "prototypes": (70.37, 89.91, 70.41, 67.00, 61.36, 65.15, 51.58, 88.81, 42.97, 65.08, 89.57, 82.28),
}
ALPHA: Rows = {
    "alpha-0": (69.33, 89.18, 69.41, 65.53, 60.72, 65.05, 50.81, 88.83, 41.46, 61.51, 90.04, 80.09),
    "alpha-0.2": (70.14, 89.89, 70.56, 65.89, 61.03, 65.25, 51.34, 88.85, 42.07, 64.28, 90.12, 82.27),
    "alpha-0.5": SUPSIAM,
    "alpha-0.8": (70.28, 89.39, 70.04, 67.08, 64.06, 66.00, 51.98, 87.45, 42.16, 62.94, 90.26, 81.76),
    "alpha-1": SIMSIAM,
}
POSITIVES: Rows = {
    "M-1": (70.13, 89.58, 70.59, 65.75, 61.39, 64.85, 51.41, 88.57, 42.80, 64.52, 89.92, 82.07),
    "M-4": (70.40, 89.94, 70.63, 66.59, 61.66, 65.07, 51.32, 88.82, 42.88, 64.78, 89.85, 82.88),
    "M-16": (70.31, 89.94, 70.86, 65.64, 61.40, 64.95, 51.54, 88.65, 43.17, 65.13, 89.66, 82.42),
    "M-all": SUPSIAM,
}
BATCH: Rows = {
    "supcon-batch-128": SUPCON,
    "supcon-batch-128-memory": (68.97, 89.70, 70.48, 65.65, 59.06, 63.43, 49.86, 87.97, 38.76, 63.74, 89.22, 80.83),
    "supsiam-batch-128": SUPSIAM,
    "supcon-batch-256": (68.42, 89.10, 69.40, 65.32, 59.21, 63.25, 50.63, 88.22, 36.05, 62.60, 89.10, 79.80),
    "supcon-batch-256-memory": (68.86, 89.46, 70.06, 65.88, 58.73, 63.92, 50.04, 87.84, 38.28, 63.02, 89.06, 81.22),
    "supsiam-batch-256": (70.44, 90.07, 70.77, 66.28, 61.89, 65.18, 51.77, 88.83, 43.09, 64.90, 89.99, 82.11),
}
COLLAPSE: Rows = {
    # collapse (1: yes) and k-NN on CIFAR-100
    "neither": (1, 1.00),
    "pool": (0, 73.92),
    "ema": (0, 73.32),
    "pool+ema": (0, 74.55),
}
SIX = ("simclr", "supcon", "simsiam", "supsiam", "byol", "supbyol")
CIFAR: Mapping[str, tuple[Values, Values]] = {
    # pretrained on -> evaluated on CIFAR-10 and on CIFAR-100; printed with a column per method
    "cifar10": ((89.58, 95.15, 93.36, 94.73, 91.56, 94.88), (56.36, 53.82, 60.51, 61.76, 50.20, 55.47)),
    "cifar100": ((80.36, 79.99, 78.81, 85.19, 78.35, 80.09), (64.77, 74.03, 70.63, 75.05, 65.42, 74.36)),
}

_FINE = ("transfer:cub200", "transfer:dogs", "transfer:pets")


PAPER: dict[str, PaperTable] = {
    "1": PaperTable(
        "table:metric",
        METRICS,
        {
            "toy": {f"alpha-{alpha:g}": values[: len(METRICS)] for alpha, values in TOY.items()},
            "imagenet100": METRIC_IMAGENET,
        },
    ),
    "2": PaperTable(
        "table:toy_transfer",
        TOY_TRANSFER,
        {"": {f"alpha-{alpha:g}": values[len(METRICS) :] for alpha, values in TOY.items()}},
    ),
    "3": PaperTable(
        "table:real_fine_grained",
        _FINE,
        {"": {alpha: tuple(values[1 + TO_ELEVEN.index(name)] for name in _FINE) for alpha, values in ALPHA.items()}},
    ),
    "4": PaperTable(
        "table:linear-eval&object_detection",
        ("linear", "ap", "ap50"),
        {"": LINEAR_AND_DETECTION},
        {"": DETECTION_INTERVALS},
    ),
    "5": PaperTable("table:transfer", RANK, {"": TRANSFER_RESNET}),
    "6": PaperTable(
        "table:linear-fewshot",
        ("rank", *(f"fewshot:{name}" for name in FEWSHOT)),
        {"5w1s": ONE_SHOT, "5w5s": FIVE_SHOT},
        {"5w1s": ONE_SHOT_INTERVALS, "5w5s": FIVE_SHOT_INTERVALS},
    ),
    "7": PaperTable("table:pool-design", AVERAGE, {"": POOL_DESIGN}),
    "8": PaperTable("table:ablation_collapse", ("collapsed", "knn"), {"": COLLAPSE}),
    "F.1": PaperTable("table:alpha", AVERAGE, {"": ALPHA}),
    "F.2": PaperTable("table:numpos", AVERAGE, {"": POSITIVES}),
    "F.3": PaperTable("table:bsz", AVERAGE, {"": BATCH}),
    "G.1": PaperTable("table:vit", RANK, {"": TRANSFER_VIT}),
    "H.1": PaperTable(
        "table:cifar_result",
        ("linear:cifar10", "linear:cifar100"),
        {name: dict(zip(SIX, zip(*rows, strict=True), strict=True)) for name, rows in CIFAR.items()},
    ),
}
