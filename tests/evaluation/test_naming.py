"""What results are called: no measurement takes the place of another one."""

import json
import re

import pytest

from tests.evaluation.made import episodes, knn, linear, run_folder, source, subject, transferred, variances
from tests.helpers import saved_result


@pytest.fixture
def run(tmp_path):
    return subject(run_folder(tmp_path / "run", source=str(source(tmp_path / "own.npz", train=90, val=30, test=30))))


def kept(tmp_path) -> dict[str, dict]:
    return {path.stem: saved_result(path) for path in (tmp_path / "run/evaluate").iterdir()}


def test_another_measurement_has_a_file_of_its_own(run, tmp_path):
    first = knn(run, k=20)
    for change in ({"k": 1, "leave_one_out": True}, {"metric": "l2"}, {"split": "test"}, {"temperature": 0.07}):
        knn(run, **{"k": 20, **change})
    linear(run, probe="sgd", epochs=2, lr=1.0)
    variances(run, split="train")
    transferred(run, run.recipe.data.source, metric="mean-per-class")
    episodes(run, run.recipe.data.source, ways=3, shots=5, episodes=3, fill_queries=True)
    names = "knn knn-k1-leave_one_out knn-l2 knn-test knn-temperature0.07 linear-sgd-epochs2-lr1.0 variance-train"
    names += " transfer-own-mean-per-class fewshot-own-3w5s-fill_queries-episodes3"
    assert set(kept(tmp_path)) == set(names.split())
    assert kept(tmp_path)["knn"] == json.loads(json.dumps(first))


def test_other_data_of_one_name_do_not_take_its_place(run, tmp_path):
    paths = []
    for folder, count in (("a", 30), ("b", 60)):
        (tmp_path / folder).mkdir()
        paths.append(str(source(tmp_path / folder / "x.npz", train=60, test=count)))
    for path in (*paths, *paths):
        knn(run, path, k=20)
    found = kept(tmp_path)
    assert found["knn-x"]["source"] == paths[0]
    (other,) = set(found) - {"knn-x"}
    assert re.fullmatch(r"knn-x-[0-9a-f]{6}", other)
    assert found[other]["source"] == paths[1]
