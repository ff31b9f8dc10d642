"""What supancl 0.2.0 wrote can be read: the encoder, its results and log (tests/fixtures/0.2.0, commit 6d6044a3).

    supancl pretrain digits.supsiam --data digits --epochs 2 --set data.limit=240 --batch-size 32 \
        --set encoder.name=cnn --set encoder.width=8 --set heads.projector.hidden=[8] --set heads.projector.out=8 \
        --set heads.predictor.hidden=[4]
"""

import json
import shutil
from pathlib import Path

import pytest

from supancl import load, load_projector
from supancl.reports.verdict import RunRecord
from tests.helpers import supancl

FIXTURE = Path(__file__).parent / "fixtures" / "0.2.0"
MEASURES = {"knn-k6": "accuracy", "linear": "accuracy", "transfer-digits": "accuracy", "variance": "ratio"}


def test_an_encoder_of_0_2_0_gives_the_results_beside_it(tmp_path, capsys):
    run = load(shutil.copytree(FIXTURE, tmp_path / "run"))
    assert run.encoder.width == load_projector(run.folder)[0].in_features == 8
    assert run.metrics[-1]["knn"] == pytest.approx(45.78, abs=0.01)
    assert set(run.results) == {"fewshot-digits-5w5s-ep20", *MEASURES}
    record = RunRecord(run.folder)
    assert (record.problems, record.end and record.end.step) == ([], 14)
    for command in (["knn"], ["linear"], ["variance"], ["transfer", "--data", "digits"]):
        said = supancl(capsys, "evaluate", command[0], run.folder, *command[1:], "--quiet")
        assert said.code == 0, said.err
    for name, key in MEASURES.items():
        now = json.loads((run.folder / "evaluate" / f"{name}.json").read_text())
        assert now["weights"] == run.results[name]["weights"]
        assert now[key] == pytest.approx(run.results[name][key], rel=1e-2), name
