"""What cleanlab finds in the out-of-fold probabilities that `experiments.audit.runs` has kept.

    python -m experiments.audit.cleanlab_scores FOLDER     # adds "cleanlab" to each FOLDER/NAME.json with a NAME.npz

It needs `pip install cleanlab` (2.9 was used); nothing else here does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.audit.ranking import roc_area
from supancl.files import write_json
from supancl.probes.precision import average_precision


def judge(probabilities: np.ndarray, labels: np.ndarray, is_wrong: np.ndarray) -> dict[str, Any]:
    import cleanlab
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    probabilities = probabilities.astype(np.float64)
    probabilities /= probabilities.sum(1, keepdims=True)
    quality = torch.from_numpy(get_label_quality_scores(labels, probabilities, method="self_confidence"))
    found = find_label_issues(labels, probabilities, n_jobs=1)
    second = torch.arange(len(labels)) % 2 == 1  # the rules were chosen on the others
    wrong = torch.from_numpy(is_wrong)
    return {
        "version": cleanlab.__version__,
        "roc_area": roc_area(-quality[second], wrong[second]),
        "average_precision": average_precision(-quality[second], wrong[second]),
        "found": int(found.sum()),
        "precision": float(is_wrong[found].mean()),
        "recall": float(found[is_wrong].mean()),
    }


def main(folder: Path) -> None:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as kept:
            judged = judge(kept["logistic"], kept["labels"], kept["is_wrong"])
        result = path.with_suffix(".json")
        write_json(result, {**json.loads(result.read_text()), "cleanlab": judged})
        print(path.stem, judged, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
