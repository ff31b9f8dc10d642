"""The driver on the digits: what is made, in which order, what is made again, and what is left for lack of time."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.evidence.__main__ import main
from experiments.evidence.drive import Driver
from experiments.evidence.further_plans import PLANS
from experiments.evidence.judge import TRAINING_FILE, called, inside, judge
from experiments.evidence.plan import Setting, Step, Task, settings_of, words_of
from experiments.evidence.plans import CIFAR_FINAL, PILOT, accuracy, final, pilots
from experiments.evidence.results import choose, read_results
from supancl.cli import main as cli
from supancl.errors import BadInput, Interrupted
from supancl.evaluate.feature_cache import VERSION
from supancl.training.trainer import Trainer
from supancl.weights.run_folder import RunFolder
from tests.files import assert_mentions, mentions

PLAN = PLANS["digits"]()


@pytest.fixture(scope="module")
def made(tmp_path_factory, caches):
    """The whole digits plan, once."""
    place = tmp_path_factory.mktemp("evidence")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPANCL_CACHE", str(caches / "evidence"))
        lines: list[str] = []
        names = Driver(PLAN, place / "results", place / "work", tell=lines.append).run()
    return place, names, lines


def test_every_step_becomes_one_file_that_says_how_it_came_about(made) -> None:
    place, names, _ = made
    results = read_results(place / "results")
    assert sorted(results) == names == sorted(step.name for step in PLAN.steps)
    for name, result in results.items():
        assert (result["status"], result["not_measured"], result["why"]) == ("finished", {}, None)
        assert result["features_version"] == VERSION
        assert {"linear", "knn", "ratio", "effective_rank", "digits_1", "digits_1_interval"} <= set(result["values"])
        assert result["commands"][0].startswith("supancl pretrain digits.")
        assert result["commands"][0].endswith(f"--out runs/{name}")
        assert len(result["commands"]) == 1 + len(PLAN.tasks["final"])
        assert str(place) not in json.dumps(result)  # nothing of the machine
        assert min(result["train_seconds"], result["images_per_second"], result["data"]["held_out"]) > 0
        assert result["versions"]["torch"]
        assert result["data"]["train"] == 256
        assert (place / "results" / f"{name}.json").stat().st_size < 10_000
        assert not (place / "work" / "runs" / name / "checkpoints").exists()


def test_final_runs_have_what_their_pilots_chose(made) -> None:
    results = read_results(made[0] / "results")
    for name in ("final-supsiam-0", "final-simsiam-0", "alpha-0-0", "collapse-ema-0"):
        step = PLAN.step(name)
        lr, decay, _ = choose(PLAN, results, step.follows)
        kept = RunFolder(made[0] / "work" / "runs" / name).read_recipe()[0]
        assert (kept.optimizer.lr, kept.optimizer.weight_decay) == (lr, decay)
        assert f"--set optimizer.lr={lr}" in results[name]["commands"][0]
    scores = [results[f"pilot-supsiam-{number}"]["values"]["linear"] for number in range(2)]
    assert choose(PLAN, results, "supsiam") == PLAN.pilots["supsiam"][scores.index(max(scores))]


def test_the_maps_hold_the_related_classes_alone(made) -> None:
    found = {path.stem: json.loads(path.read_text()) for path in (made[0] / "results" / "maps").glob("*.json")}
    assert set(found) == {"alpha-0-0", "final-supsiam-0", "final-simsiam-0"}
    for content in found.values():
        assert content["classes"] == ["3", "5", "8"]
        assert set(content["labels"]) == {0, 1, 2}
        assert len(content["points"]) == len(content["labels"]) > 60


def test_what_is_there_is_not_made_again_and_what_was_lost_is(made, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for path in (made[0] / "results").glob("*.json"):
        if path.stem != "pilot-simsiam-1":
            (results / path.name).write_text(path.read_text())
    before = {path.name: path.stat().st_mtime_ns for path in results.iterdir()}
    assert Driver(PLAN, results, tmp_path / "work", tell=lambda text: None).run() == ["pilot-simsiam-1"]
    assert all((results / name).stat().st_mtime_ns == stamp for name, stamp in before.items())
    again = read_results(results)["pilot-simsiam-1"]["values"]
    assert again == read_results(made[0] / "results")["pilot-simsiam-1"]["values"]  # the same bits on a CPU


def test_a_result_is_written_from_the_evaluations_that_came_back_without_the_encoder(made, tmp_path: Path) -> None:
    name, work = "alpha-0-0", tmp_path / "back"
    kept = work / "runs" / name
    shutil.copytree(made[0] / "work" / "runs" / name, kept, ignore=shutil.ignore_patterns("*.safetensors"))
    flags = ["--plan", "digits", "--work", str(work), "--results", str(tmp_path / "results")]
    assert main(["judge", name, *flags]) == 0
    whole, again = (read_results(folder / "results")[name] for folder in (made[0], tmp_path))
    differ = {key for key in whole if whole[key] != again[key]}
    assert differ <= {"judge_seconds", "not_measured", "hardware"}  # evaluations name a CPU in other words
    assert list(again["not_measured"]) == ["map"]
    next((kept / "evaluate").glob("knn*.json")).unlink()
    assert main(["judge", name, *flags]) == 0
    again = read_results(tmp_path / "results")[name]
    assert whole["values"].keys() - again["values"].keys() == {"knn"}
    assert f"knn runs/{name}" in again["not_measured"]


def test_a_run_that_the_machine_still_has_goes_on_and_one_that_only_lacks_its_judging_is_judged(tmp_path: Path) -> None:
    step = replace(PLAN.steps[0], epochs=2)
    plan, work = replace(PLAN, steps=[step], picture=()), tmp_path / "work"
    driver = Driver(plan, tmp_path / "results", work, tell=lambda text: None)
    words = words_of(step, plan, settings_of(step, plan, None))
    work.mkdir()
    with inside(work):
        assert called([*words, "--quiet"])[0] == 0  # stopped after its last checkpoint, before anything was noted
    assert driver.run() == [step.name]
    assert read_results(tmp_path / "results")[step.name]["resumed"] is True
    (tmp_path / "results" / f"{step.name}.json").unlink()
    noted = work / "runs" / step.name / TRAINING_FILE
    stamp = noted.stat().st_mtime_ns
    assert Driver(plan, tmp_path / "results", work, tell=lambda text: None).run() == [step.name]
    assert noted.stat().st_mtime_ns == stamp  # not trained again
    (tmp_path / "results" / f"{step.name}.json").unlink()
    other = replace(plan, steps=[replace(step, settings={**step.settings, "optimizer.lr": 0.07})])
    with pytest.raises(BadInput, match=mentions("pilot-supsiam-0", "settings", "plan")):
        Driver(other, tmp_path / "results", work, tell=lambda text: None).run()
    noted.unlink()
    with pytest.raises(BadInput, match=mentions("optimizer.lr=0.07", "0.1")):
        Driver(other, tmp_path / "results", work, tell=lambda text: None).run()


def test_seeds_share_one_step_and_come_out_as_if_each_had_been_alone(made, tmp_path: Path, monkeypatch) -> None:
    """Also where a run in between goes on from a checkpoint, and where one of another kind has come before."""
    built: list[Trainer] = []
    monkeypatch.setattr("supancl.training.cuda.reuse.Trainer", lambda *how: built.append(Trainer(*how)) or built[-1])
    pilot, seeds = (
        PLAN.step("pilot-simsiam-0"),
        [replace(PLAN.steps[0], name=f"pilot-supsiam-{n}", seed=n, epochs=2) for n in range(3)],
    )
    plan = replace(PLAN, steps=[pilot, *seeds], tasks={"pilot": PLAN.tasks["pilot"][:2]}, picture=())
    for name in ("alone", "together"):  # in both the second seed was stopped after a step
        (tmp_path / name).mkdir()
        with inside(tmp_path / name), monkeypatch.context() as patch:
            patch.setattr(
                "supancl.training.loop.Loop.end_epoch", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            words = words_of(seeds[1], plan, settings_of(seeds[1], plan, None))
            with pytest.raises(Interrupted):
                called([*words, "--set", "train.checkpoint_every=1", "--quiet"])
    for step in seeds:
        one = replace(plan, steps=[step])
        Driver(one, tmp_path / "one", tmp_path / "alone", tell=lambda text: None).run()
    built.clear()
    Driver(plan, tmp_path / "all", tmp_path / "together", tell=lambda text: None).run()
    assert len(built) == 2  # SimSiam's, and one for the three seeds
    together, alone = read_results(tmp_path / "all"), read_results(tmp_path / "one")
    assert together["pilot-supsiam-1"]["resumed"] is True
    assert {name: together[name]["values"] for name in alone} == {name: one["values"] for name, one in alone.items()}
    assert {name: together[name]["last"] for name in alone} == {name: one["last"] for name, one in alone.items()}
    assert len({one["last"]["loss"] for one in alone.values()}) == 3


def test_pilots_are_judged_on_what_they_held_out_and_final_runs_on_the_test_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (400, 8, 8), dtype=np.uint8), np.arange(400) % 10
    np.savez(
        tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images[:90], test_labels=labels[:90]
    )
    first, last = pilots("supsiam", (Setting(0.1, 5e-4),), epochs=1)[0], final("supsiam", 0, epochs=1)
    plan = replace(
        PLAN,
        data=str(tmp_path / "own.npz"),
        steps=[first, last],
        always={"encoder.width": 16},
        tasks={"pilot": PILOT, "final": CIFAR_FINAL[:3]},
        pilots={"supsiam": (Setting(0.1, 5e-4),)},
    )
    seen: dict[str, list[tuple[str, int]]] = {}

    def listening(words):
        outcome = called(words)
        if words[1] in ("linear", "knn"):
            found = json.loads(Path(words[-1]).read_text())
            seen.setdefault(words[2], []).append((found["judged"], found["queries"]))
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.evidence.drive.judge", lambda *how: judge(*how[:4], listening))
        Driver(plan, tmp_path / "results", tmp_path / "work", tell=lambda text: None).run()
    assert seen == {"runs/pilot-supsiam-0": [("train", 40)] * 2, "runs/final-supsiam-0": [("test", 90)] * 2}


def test_no_run_is_started_that_would_not_end_in_time(tmp_path: Path) -> None:
    driver = Driver(PLAN, tmp_path / "results", tmp_path / "work", until=1.0, tell=lambda text: None)
    assert driver.run() == []
    assert not (tmp_path / "results").exists()


def test_a_shorter_run_may_take_the_time_that_a_longer_one_cannot(tmp_path: Path, monkeypatch) -> None:
    long = replace(PLAN.steps[0], epochs=10**7)
    driver = Driver(replace(PLAN, steps=[long, PLAN.steps[1]]), tmp_path / "results", tmp_path, until=200)
    assert driver.next_step() == PLAN.steps[1]
    driver.only = ("simsiam",)
    assert driver.next_step() is None


def test_a_run_that_fails_is_kept_as_such_and_never_chosen(tmp_path: Path, capsys) -> None:
    wild = {"optimizer.lr": 1e6, "optimizer.weight_decay": 1.0, "schedule.warmup_epochs": 0}
    step = Step("pilot-supsiam-0", "pilot", "supsiam", 2, 0, wild)
    plan = replace(PLAN, steps=[step], pilots={"supsiam": ((1e6, 1.0),)})
    lines: list[str] = []
    assert Driver(plan, tmp_path / "results", tmp_path / "work", tell=lines.append).run() == [step.name]
    assert lines[-1] == "supsiam: no pilot has a linear accuracy, so nothing that follows them can be started"
    result = read_results(tmp_path / "results")[step.name]
    assert (result["status"], result["values"]) == ("failed", {})
    assert "not" in result["why"]
    assert choose(plan, {step.name: result}, "supsiam") is None
    assert result["why"] in capsys.readouterr().err


def test_faults_that_are_not_the_runs_end_the_driver_and_leave_no_file(tmp_path: Path) -> None:
    plan, lines = replace(PLAN, data="nowhere.npz"), []
    with pytest.raises(BadInput, match=mentions("pilot-supsiam-0", "nowhere.npz", "pilot-supsiam-1")):
        Driver(plan, tmp_path / "results", tmp_path / "work", tell=lines.append).run()
    assert len([line for line in lines if "nothing of it was kept" in line]) == 2
    assert not list(tmp_path.glob("results/*.json"))


def test_one_fault_is_told_at_the_end_and_the_other_runs_are_made(tmp_path: Path, monkeypatch) -> None:
    plan = replace(PLAN, steps=PLAN.steps[:3], tasks={"pilot": PLAN.tasks["pilot"][:1]})
    monkeypatch.setattr(
        "experiments.evidence.judge.main", lambda words: 1 if words[-2] == "runs/pilot-supsiam-1" else cli(words)
    )
    with pytest.raises(BadInput, match=mentions("pilot-supsiam-1", "exit 1")):
        Driver(plan, tmp_path / "results", tmp_path / "work", tell=lambda text: None).run()
    assert sorted(read_results(tmp_path / "results")) == ["pilot-simsiam-0", "pilot-supsiam-0"]


def test_a_run_of_which_nothing_could_be_measured_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "broken.npz").write_text("not an archive")
    broken = [Task(("linear", "--data", "broken.npz"), accuracy("linear"))]
    plan = replace(PLAN, steps=PLAN.steps[:1], tasks={"pilot": broken})
    with pytest.raises(BadInput, match=mentions("pilot-supsiam-0", "broken.npz")):
        Driver(plan, tmp_path / "results", tmp_path / "work", tell=lambda text: None).run()
    assert not list(tmp_path.glob("results/*.json"))
    mended, lines = replace(plan, tasks={"pilot": [*broken, PLAN.tasks["pilot"][0]]}), []
    again = Driver(mended, tmp_path / "results", tmp_path / "work", until=28, tell=lines.append)  # no time to train
    assert again.run() == ["pilot-supsiam-0"]
    kept = read_results(tmp_path / "results")["pilot-supsiam-0"]
    assert list(kept["not_measured"]) == ["linear runs/pilot-supsiam-0 --data broken.npz"]
    assert (tmp_path / "work" / "runs" / "pilot-supsiam-0" / "checkpoints").exists()  # it can be judged once more
    assert set(kept["values"]) == {"linear"}
    assert "; linear runs/pilot-supsiam-0 --data broken.npz failed: " in lines[-1]


def test_a_pilot_without_the_accuracy_that_chooses_is_no_result(tmp_path: Path, monkeypatch) -> None:
    plan = replace(PLAN, steps=PLAN.steps[:1], tasks={"pilot": PLAN.tasks["pilot"][:2]})

    def no_linear(words):
        return (2, ["out of memory"], 0.1) if words[1] == "linear" else called(words)

    monkeypatch.setattr("experiments.evidence.drive.judge", lambda *how: judge(*how[:4], no_linear))
    with pytest.raises(BadInput, match=mentions("pilot-supsiam-0", "linear", "out of memory")):
        Driver(plan, tmp_path / "results", tmp_path / "work", tell=lambda text: None).run()
    assert not list(tmp_path.glob("results/*.json"))  # with k-NN alone it would have been passed over in silence


def test_an_evaluation_that_fails_once_is_tried_again(tmp_path: Path, monkeypatch) -> None:
    plan = replace(PLAN, steps=PLAN.steps[:1], tasks={"pilot": PLAN.tasks["pilot"][:1]})
    heard: list[str] = []

    def short_of_memory(words):
        heard.append(words[1])
        return (2, ["out of memory"], 0.1) if heard == ["linear"] else called(words)

    monkeypatch.setattr("experiments.evidence.drive.judge", lambda *how: judge(*how[:4], short_of_memory))
    Driver(plan, tmp_path / "results", tmp_path / "work", tell=lambda text: None).run()
    kept = read_results(tmp_path / "results")["pilot-supsiam-0"]
    assert heard == ["linear", "linear"]
    assert (set(kept["values"]), kept["not_measured"]) == ({"linear"}, {})


def test_a_map_that_cannot_be_drawn_does_not_cost_the_result(tmp_path: Path, monkeypatch) -> None:
    step = replace(final("simsiam", 0, epochs=1), settings={}, follows=None)
    plan = replace(PLAN, steps=[step], tasks={"final": PLAN.tasks["final"][:1]})
    monkeypatch.setattr("experiments.evidence.judge.tsne_map", lambda features: 1 / 0)
    Driver(plan, tmp_path / "results", tmp_path / "work", tell=lambda text: None).run()
    kept = read_results(tmp_path / "results")["final-simsiam-0"]
    assert kept["not_measured"] == {"map": "division by zero"}
    assert kept["values"]["linear"] > 0


def test_judging_can_go_on_beside_the_next_run(tmp_path: Path, made) -> None:
    plan = replace(PLAN, steps=PLAN.steps[:1])  # the process beside looks the plan up by its name
    lines: list[str] = []
    Driver(plan, tmp_path / "results", tmp_path / "work", beside=True, commit="abc", tell=lines.append).run()
    beside = read_results(tmp_path / "results")["pilot-supsiam-0"]
    assert beside["values"] == read_results(made[0] / "results")["pilot-supsiam-0"]["values"]
    assert beside["commit"] == "abc"
    assert any("pilot-supsiam-0: finished; linear" in line for line in lines)


def test_what_is_being_judged_is_waited_for_when_the_driver_gives_up(tmp_path: Path, monkeypatch) -> None:
    """Its machine may go with it."""

    class Judging:
        waited = False

        def wait(self) -> None:
            self.waited = True

    for error in (BadInput("no"), RuntimeError("CUDA error"), Interrupted("stopped", 15)):
        driver, judging = Driver(PLAN, tmp_path / "results", tmp_path / "work", tell=lambda text: None), Judging()
        driver.judging, driver.locked[PLAN.steps[1].name] = (PLAN.steps[1], judging), "lock"

        def train(step: Step, error: Exception = error) -> bool:
            raise error

        monkeypatch.setattr(driver, "train", train)
        with pytest.raises(type(error)):
            driver.run()
        assert judging.waited is not isinstance(error, Interrupted)  # a signal gives no time


def test_a_signal_ends_the_driver_not_only_the_run(monkeypatch) -> None:
    monkeypatch.setattr("experiments.evidence.judge.main", lambda words: 143)
    with pytest.raises(Interrupted):
        called(["pretrain"])


def test_bad_input_is_said_in_a_line(tmp_path: Path, capsys) -> None:
    flags = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    assert main(["run", *flags]) == 2
    assert_mentions(capsys.readouterr().err, "cifar100.npz", "missing")
    assert main(["run", "--plan", "cifar1000", *flags]) == 2
    assert "no such plan" in capsys.readouterr().err
    assert main(["run", "--plan", "digits", "--until-seconds", "0", *flags]) == 2
    assert_mentions(capsys.readouterr().err, "--until-seconds 0", "above 0")
    assert main(["judge", "nobody", "--plan", "digits", *flags]) == 2
    assert_mentions(capsys.readouterr().err, "nobody", "no such run")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "half.json").write_text('{"na')
    with pytest.raises(BadInput, match=mentions("half.json", "remove")):
        read_results(tmp_path / "results")


def test_results_of_a_rehearsal_are_not_taken_for_real_ones(made, capsys) -> None:
    assert main(["plan", "--plan", "digits-rehearsal", "--results", str(made[0] / "results")]) == 2
    assert_mentions(capsys.readouterr().err, "'digits'", "'digits-rehearsal'", "--results")


def test_the_plan_is_shown_with_its_seconds(made, tmp_path: Path, capsys) -> None:
    assert main(["plan", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "pilot-supsiam-0" in printed
    assert "0 of 64 runs are done" in printed
    assert main(["plan", "--plan", "digits", "--results", str(made[0] / "results")]) == 0
    assert "8 of 8 runs are done; the others should take 0 s" in capsys.readouterr().out
