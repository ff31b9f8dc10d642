"""Sources that settings share: of heads' batch norms and biases, and of fields that the paper cannot contain."""

from __future__ import annotations

from supancl.core.heads import MLP
from supancl.core.losses import Align
from supancl.core.methods import METHODS

OURS = ("views.local", "views.solarize_threshold", "encoder.channels", "encoder.width", "pool.rate", "pool.sharded",
        "optimizer.encoder_lr_scale", "schedule.restart_epoch", "schedule.restart_rate")  # fmt: skip


def own_sources(method: str, predictor: MLP | None) -> dict[str, str]:
    """Sources of what the paper cannot contain: fields of ours, and those that the method does not use."""
    row = METHODS[method]
    unused = [] if row.branches.target == "momentum" else ["branches.momentum", "branches.momentum_end"]
    unused += ["pool.size", "loss.samples"] if row.pool.kind == "none" else []
    unused += ["schedule.predictor"] if predictor is None else []
    is_plain = isinstance(row.loss, Align) and not row.loss.supervised
    return {
        **dict.fromkeys((*OURS, *unused), "our choice"),
        "pool.start": "our choice: the released code's MoCo queues start random",
        "schedule.granularity": "our choice: per step",
        **({"loss.alpha": "Eq. 3: 1 is without labels"} if is_plain else {}),
    }


def norm_and_bias(source: str) -> dict[str, str]:
    """`source` for every batch norm and bias field of both heads."""
    return {
        f"heads.{head}.{field}": source
        for head in ("projector", "predictor")
        for field in ("norm", "last_norm", "bias")
    }


SIAM = norm_and_bias("as in the released code")
BYOL = {**SIAM, "heads.projector.bias": "our choice: the released code has none in the last layer"}
CONTRAST = {
    **SIAM, "heads.projector.norm": "our choice: the released code has batch norm",
    "heads.projector.bias": "our choice: the released code has none in the first layer",
}  # fmt: skip
MOCO3 = norm_and_bias("MoCo-v3")
CLASSIFIER = dict.fromkeys([*SIAM, "heads.projector.hidden"], "our choice: a plain classifier")

HEAD_SOURCES: dict[str, dict[str, str]] = {
    "simclr": CONTRAST, "supcon": CONTRAST, "moco2": CONTRAST, "supmoco": CONTRAST, "moco3": MOCO3,
    "simsiam": SIAM, "supsiam": SIAM, "semi": SIAM, "byol": BYOL, "supbyol": BYOL, "crossentropy": CLASSIFIER,
}  # fmt: skip
