"""A run keeps its projector, and `--layer projector` measures what comes out of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from supancl import embed, load_encoder
from supancl.cli import main
from supancl.core.specs import MLP
from supancl.data.opening import open_data
from supancl.runs.checkpoint import checkpoints, load_checkpoint
from supancl.runs.folder import RunFolder

TINY = ["--epochs", "2", "--batch-size", "32", "--set", "data.limit=128", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A method with a momentum copy, so that the online projector and the other one differ."""
    out = tmp_path_factory.mktemp("projector") / "run"
    assert main(["pretrain", "digits.supbyol", *TINY, "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(trained, tmp_path / "run").parent)
    return Path("run")


def project(run: Path, features: np.ndarray) -> np.ndarray:
    """The online projector of the newest checkpoint, layer by layer, with the running statistics."""
    state = load_checkpoint(checkpoints(run / "checkpoints")[-1])["branches"]
    weights = {
        name.removeprefix("projector."): value.double().numpy()
        for name, value in state.items()
        if name.startswith("projector.")
    }
    for place in range(1 + max(int(name.split(".")[0]) for name in weights)):
        own = {name.split(".")[1]: value for name, value in weights.items() if name.split(".")[0] == str(place)}
        if "running_mean" in own:
            features = (features - own["running_mean"]) / np.sqrt(own["running_var"] + 1e-5)
            features = features * own.get("weight", 1) + own.get("bias", 0)
        elif own:
            features = features @ own["weight"].T + own.get("bias", 0)
        else:
            features = features.clip(min=0)
    return features


def projections_of_training_images(run: Path) -> tuple[np.ndarray, np.ndarray]:
    data = open_data(RunFolder(run).read_recipe()[0].data, 1)
    values, labels = embed(load_encoder(run), data.train)
    return project(run, values.double().numpy()), labels.numpy()


def test_variance_of_projector_features_is_that_by_hand(run):
    assert main(["evaluate", "variance", "run", "--split", "train", "--layer", "projector", "--quiet"]) == 0
    result = json.loads((run / "evaluate" / "variance-train-projector.json").read_text())
    found, labels = projections_of_training_images(run)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    within = sum(((found[labels == label] - found[labels == label].mean(0)) ** 2).sum() for label in set(labels))
    total = ((found - found.mean(0)) ** 2).sum()
    assert result["within"] == pytest.approx(within / len(labels), rel=1e-4)
    assert result["total"] == pytest.approx(total / len(labels), rel=1e-4)
    assert result["layer"] == "projector"
    assert main(["evaluate", "variance", "run", "--split", "train", "--quiet"]) == 0
    plain = json.loads((run / "evaluate" / "variance-train.json").read_text())
    assert plain["within"] != pytest.approx(result["within"], rel=1e-3)
    assert "projector" not in plain


@pytest.mark.parametrize("spec", [
    MLP(hidden=(5, 6), out=4), MLP(hidden=(5,), out=4, norm="none"), MLP(out=4), MLP(hidden=(5,), out=4, bias="none"),
    MLP(hidden=(5,), out=4, norm="none", bias="none"), MLP(hidden=(5,), out=4, last_norm="batch"),
    MLP(hidden=(5,), out=4, last_norm="batch-no-affine"),
])  # fmt: skip
def test_a_head_is_known_by_its_weights(spec):
    found, width = MLP.describe(spec.build(7).state_dict())
    assert (found, width) == (spec, 7)
