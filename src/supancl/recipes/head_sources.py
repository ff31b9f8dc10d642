"""Sources of the batch norm and bias settings of each method's heads; the paper states only depths and widths."""

from __future__ import annotations


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
CLASSIFIER = norm_and_bias("our choice: a plain classifier")

HEAD_SOURCES: dict[str, dict[str, str]] = {
    "simclr": CONTRAST, "supcon": CONTRAST, "moco2": CONTRAST, "supmoco": CONTRAST, "moco3": MOCO3,
    "simsiam": SIAM, "supsiam": SIAM, "semi": SIAM, "byol": BYOL, "supbyol": BYOL, "crossentropy": CLASSIFIER,
}  # fmt: skip
