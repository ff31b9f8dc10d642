"""The plan of ImageNet photographs: its rows, their recipes, how they are judged, and its part of the page."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.evidence.__main__ import ROOT, main
from experiments.evidence.drive import Driver
from experiments.evidence.imagenet_page import (
    ACCURACIES,
    imagenet_finding,
    imagenet_line,
    imagenet_part,
    imagenet_summary,
)
from experiments.evidence.plan import recipe_of, settings_of, words_of
from experiments.evidence.plans import IMAGENET_METHODS, imagenet_plan, imagenet_rehearsal
from experiments.evidence.results import (
    choose,
    expected_seconds,
    identity_of,
    judging_seconds,
    read_results,
    write_result,
)
from supancl.cli import build_parser
from supancl.cli.flags import recipe_from_flags
from supancl.detect.spec import detect_spec
from supancl.recipes import recipe

PLAN = imagenet_plan()
TRAINED = [step for step in PLAN.steps if step.needs is None]


def chosen(step, plan=PLAN):
    """The rate of a run that follows pilots, as if its last pilot were the best one."""
    return None if step.follows is None else plan.pilots[step.follows][-1]


def built(step, plan=PLAN):
    settings = settings_of(step, plan, chosen(step, plan))
    return recipe_of(plan.family, f"{step.method}{plan.suffix}", step.epochs, settings)


def made(step, values=None, known=None, **others):
    settings = settings_of(step, PLAN, None if step.follows is None else choose(PLAN, known, step.follows))
    return {
        "name": step.name,
        "stage": step.stage,
        "method": step.method,
        "seed": step.seed,
        "epochs": step.epochs,
        "identity": identity_of(step, PLAN, known or {}),
        "settings": settings,
        "train_seconds": 300.0,
        "resumed": False,
        "beside": True,
        "shared": False,
        "warnings": [],
        "images_per_second": 20_000.0,
        "last": {},
        "curve": [],
        "plan": PLAN.name,
        "status": "finished",
        "why": None,
        "not_measured": {},
        "judge_seconds": 40.0,
        "commands": [shlex.join(["supancl", *words_of(step, PLAN, settings)]), f"supancl evaluate knn {step.name}"],
        "values": values or {},
        "hardware": "a GPU",
        "versions": {},
        "commit": "abc",
        "data": {"train": 27_000},
        **others,
    }


def test_rows_come_in_the_order_of_their_value_and_once() -> None:
    names = [step.name for step in PLAN.steps]
    assert len(set(names)) == len(names)
    assert names[:9] == [f"final-{method}-0" for method in IMAGENET_METHODS]
    assert names[:4] == [f"final-{method}-0" for method in ("supsiam", "simsiam", "supbyol", "byol")]
    finals = [name for name in names[9:] if name.startswith(("final-", "tuned-"))]
    assert finals[:2] == ["tuned-simsiam-0", "final-supsiam-1"]
    assert finals[-5:] == ["tuned-byol-1", "final-supbyol-2", "tuned-byol-2", "tuned-simsiam-3", "final-supsiam-5"]
    for detected in (step for step in PLAN.steps if step.needs):
        assert names.index(detected.needs) < names.index(detected.name)


@pytest.mark.parametrize("step", TRAINED, ids=lambda step: step.name)
def test_a_row_is_the_papers_recipe_at_64_px(step) -> None:
    whole, own = built(step), recipe(f"imagenet100.{step.method}-256")
    assert whole.views.size == whole.encoder.size == 64
    assert whole.encoder.name == "resnet50"
    assert whole.train.epochs == (200 if step.stage == "final" else 20)
    assert (whole.train.batch_size, whole.optimizer.reference_batch, whole.data.holdout) == (256, 128, 0.1)
    assert whole.schedule.warmup_epochs == ((10 if step.stage == "final" else 1) if own.schedule.warmup_epochs else 0)
    if step.stage == "final":
        rate = 0.05 if step.name.startswith("tuned-") else own.optimizer.lr
        assert whole.optimizer == replace(own.optimizer, lr=rate)
        assert (whole.heads, whole.loss, whole.pool) == (own.heads, own.loss, own.pool)


@pytest.mark.parametrize("plan", [PLAN, imagenet_rehearsal()], ids=lambda plan: plan.name)
def test_commands_make_the_recipes_that_are_meant(plan) -> None:
    for step in plan.steps:
        settings = settings_of(step, plan, chosen(step, plan))
        words = shlex.split(shlex.join(words_of(step, plan, settings)))
        args = build_parser().parse_args(words)
        assert args.out == f"runs/{step.name}"
        if step.needs:
            assert args.encoder == f"runs/{step.needs}"
            asked = {name: value for name, (value, _) in args.overrides.items()}
            assert detect_spec("c4", asked).iters == (720 if plan is PLAN else 2)
            continue
        meant = built(step, plan).with_set({"train.seed": step.seed, "data.source": plan.data})
        assert replace(recipe_from_flags(args.recipe, args), sources={}) == replace(meant, sources={})


def test_pilots_try_the_recipes_rate_first_and_nothing_else_differs() -> None:
    first, separate_simsiam = (built(PLAN.step(f"pilot-supsiam-{number}")) for number in range(2))
    assert first.optimizer == recipe("imagenet100.supsiam-256").optimizer
    assert separate_simsiam == replace(first, optimizer=replace(first.optimizer, lr=0.1))


def test_the_sgd_probe_is_asked_once_a_method_and_a_classifier_has_no_projector() -> None:
    def words(method: str, seed: int) -> list[str]:
        return [" ".join(task.words) for task in PLAN.tasks_of("final", method, seed)]

    assert len(words("supsiam", 0)) == len(PLAN.tasks["final"])
    assert set(words("supsiam", 0)) - set(words("supsiam", 1)) == {"linear --split test --probe sgd"}
    (projector,) = set(words("supsiam", 0)) - set(words("crossentropy", 0))
    assert projector == "variance --split train --layer projector"
    step = PLAN.step("final-supsiam-0")
    assert judging_seconds(step, PLAN, {}) <= 84


def test_two_drivers_should_train_the_first_four_rows_in_a_lease() -> None:
    first, _, third, _ = (
        expected_seconds(step, PLAN, {}, compiled=False, judged=step.method == "supbyol", shared=True)
        for step in PLAN.steps[:4]
    )
    assert first + 60 + third < 1440  # 60: the first of all compiles longer than the guess


def test_a_detector_waits_for_an_encoder_on_this_machine_and_its_images(tmp_path: Path) -> None:
    driver = Driver(PLAN, tmp_path / "results", tmp_path, only=["detect-supsiam"])
    assert driver.possible({}) == []
    (tmp_path / "runs" / "final-supsiam-4" / "evaluate").mkdir(parents=True)
    assert driver.possible({}) == []
    (tmp_path / PLAN.scenes).mkdir(parents=True)
    assert [step.name for step in driver.possible({})] == ["detect-supsiam-4"]


def test_a_final_run_that_cannot_end_in_time_gives_way_to_a_shorter_row(tmp_path: Path) -> None:
    driver = Driver(PLAN, tmp_path / "results", tmp_path, until=380.0)
    fitting = [step.name for step in driver.possible({})]
    assert "final-supbyol-0" not in fitting
    assert fitting[0] == "pilot-supsiam-0"
    assert [step.name for step in Driver(PLAN, tmp_path, tmp_path, until=450.0).possible({})][:3] == [
        "final-supsiam-0",
        "final-simsiam-0",
        "final-supcon-0",
    ]


def test_a_run_that_was_slower_than_guessed_makes_the_others_expected_slower(tmp_path: Path) -> None:
    """The second pair on a machine is begun before the first is judged: what they say of their speed counts at once."""
    driver = Driver(PLAN, tmp_path / "results", tmp_path, shared=True)
    step = PLAN.step("final-supbyol-0")
    guessed = driver.expected(step, {})
    ran = {"final-supsiam-0": 9_000.0, "final-simsiam-0": 10_000.0}
    for name, speed in ran.items():
        one = made(PLAN.step(name), shared=True, images_per_second=speed)
        told = {key: one[key] for key in ("name", "stage", "method", "settings", "images_per_second", "shared")}
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "evidence.json").write_text(json.dumps(told))
    images = 200 * 27_000
    assert driver.expected(step, {}) - guessed == pytest.approx(
        images / (16_500 / 22_000 * 9_000) - images / (16_500 / 1.85)
    )


def test_two_runs_side_by_side_that_were_faster_than_guessed_make_the_others_expected_faster() -> None:
    step = PLAN.step("final-supcon-0")
    fast = [
        made(PLAN.step(f"final-{method}-0"), shared=True, images_per_second=15_000.0)
        for method in ("supsiam", "simsiam")
    ]
    guessed, one, two = (
        expected_seconds(step, PLAN, {each["name"]: each for each in fast[:count]}, shared=True) for count in range(3)
    )
    assert guessed == one  # it may have been alone for most of its time
    assert guessed - two == pytest.approx(200 * 27_000 / (22_000 / 1.85) - 200 * 27_000 / 15_000)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_part_is_empty_without_results_and_shows_what_there_is(tmp_path: Path) -> None:
    assert imagenet_part(tmp_path / "none") == ""
    for name, level in (
        ("final-supsiam-0", 60.0),
        ("final-supsiam-1", 61.0),
        ("final-supsiam-2", 62.0),
        ("final-simsiam-0", 40.0),
    ):
        values = {**dict.fromkeys(ACCURACIES, level), "ratio": 0.5, "train_ratio": 0.4, "linear_sgd": level}
        write_result(tmp_path, made(PLAN.step(name), values))
    write_result(tmp_path, made(PLAN.step("pilot-supsiam-1"), {"linear": 33.0, "knn": 30.0}))
    write_result(
        tmp_path, made(PLAN.step("detect-supsiam-2"), {"AP": 5.0, "AP50": 12.0, "AP75": 2.0}, images_per_second=None)
    )
    write_result(tmp_path, made(PLAN.step("final-byol-0"), status="failed", why="the loss is not finite"))
    text = imagenet_part(tmp_path)
    assert "7 of the plan's 36 runs are done" in text
    assert "| SupSiam | 0, 1, 2 | 61.00 ± 2.48 |" in text
    assert "| SupSiam - SimSiam | +21.00 [" in text
    assert "]* |" in text  # SimSiam has one seed
    assert "| SupSiam | 0.1 | 33.00 | 30.00 |" in text
    assert "| SupSiam | 2 | 5.00 | 12.00 | 2.00 |" in text
    assert "- final-byol-0: failed: the loss is not finite" in text
    assert "Not run: 29 runs: final-supbyol-0," in text


def test_an_alarm_that_passed_is_no_collapse(tmp_path: Path) -> None:
    """SimSiam ends with few directions and a poor k-NN; SupCon's few directions do not harm it."""
    for method, knn, rank, status in (
        ("supsiam", 48.0, 30.0, "finished"),
        ("simsiam", 11.0, 6.0, "collapsed"),
        ("supcon", 46.0, 9.0, "collapsed"),
        ("simclr", 20.0, 17.0, "collapsed"),
    ):
        values = {**dict.fromkeys(ACCURACIES, 50.0), "knn": knn, "projector_effective_rank": rank}
        write_result(tmp_path, made(PLAN.step(f"final-{method}-0"), values, status=status))
    text = imagenet_part(tmp_path)
    for name in ("| SupSiam |", "| SimSiam † |", "| SupCon ‡ |", "| SimCLR ‡ |"):
        assert name in text
    line = imagenet_line(tmp_path)
    assert "one seed of SupSiam, SupCon and SimCLR, 32 of its 36 runs are not done" in line
    assert "at the paper's batch 128, rate 0.2 and (SimSiam) 40 warm-up epochs were not tested." in line
    for text in (imagenet_finding(tmp_path), imagenet_summary(tmp_path)):
        assert text == ""  # a difference to a collapsed run says nothing


def test_a_method_that_collapsed_is_compared_at_the_best_rate_that_did_not(tmp_path: Path) -> None:
    """SimSiam's first pilot has the best accuracy and collapsed; its detectors are compared with SupSiam's."""
    pilots = {
        f"pilot-simsiam-{number}": made(PLAN.step(f"pilot-simsiam-{number}"), {"linear": linear}, status=status)
        for number, (linear, status) in enumerate([(11.0, "collapsed"), (8.9, "finished"), (8.0, "finished")])
    }
    assert choose(PLAN, pilots, "simsiam").lr == 0.1
    all_collapsed = {name: {**pilot, "status": "collapsed"} for name, pilot in pilots.items()}
    assert choose(PLAN, all_collapsed, "simsiam").lr == 0.2
    weak, sound, good = (
        {**dict.fromkeys(ACCURACIES, level), "projector_effective_rank": rank}
        for level, rank in ((10.0, 6.0), (30.0, 40.0), (50.0, 30.0))
    )
    precision = dict.fromkeys(("AP", "AP50", "AP75"), 5.0)
    results = [
        *pilots.values(),
        made(PLAN.step("final-simsiam-0"), weak, status="collapsed"),
        *(made(PLAN.step(f"tuned-simsiam-{seed}"), sound, pilots) for seed in (0, 1, 2)),
        *(made(PLAN.step(f"final-supsiam-{seed}"), good) for seed in (0, 1)),
        *(made(PLAN.step(f"detect-simsiam-{seed}"), precision) for seed in (1, 2)),
        *(made(PLAN.step(f"detect-supsiam-{seed}"), dict.fromkeys(precision, 7.0)) for seed in (2, 4)),
    ]
    for one in results:
        write_result(tmp_path, one)
    text = imagenet_part(tmp_path)
    assert "| SimSiam (lower rate) | 0, 1, 2 | 30.00 ± 0.00 |" in text
    assert "| SimSiam † | 0 | 10.00 |" in text
    assert "| SupSiam - SimSiam (lower rate) | +20.00 [+20.00, +20.00] |" in text
    assert "| SupSiam - SimSiam |  | +2.00 [+2.00, +2.00] |" in text
    found = imagenet_finding(tmp_path)
    assert "SimSiam collapsed at batch 256 and rate 0.4 (SimSiam with 10 warm-up epochs, BYOL with none)" in found
    assert "SupSiam - SimSiam (lower rate) is +20.0 [+20.0, +20.0] points" in found
    assert "2 and 3 seeds); on other data SupSiam is better in all 7 accuracies; as the start of a detector" in found
    assert "it gains +2.0 [+2.0, +2.0] AP (2 seeds each)" in found
    assert "SupSiam - SimSiam is +20.0 [+20.0, +20.0] points" in imagenet_summary(tmp_path)
    write_result(tmp_path, made(PLAN.step("tuned-simsiam-0"), {**sound, "pets": 90.0}, pilots))
    write_result(tmp_path, made(PLAN.step("tuned-simsiam-1"), {**sound, "pets": 90.0}, pilots))
    write_result(tmp_path, made(PLAN.step("tuned-simsiam-2"), {**sound, "pets": 90.0}, pilots))
    assert "better in 6 of 7, worse in 1; as the start" in imagenet_finding(tmp_path)
    assert " It is worse on Pets." in imagenet_finding(tmp_path)
    assert "may make labels look better" not in imagenet_finding(tmp_path)
    assert "On Pets the rate decides: with 0.4 in both, SupSiam is 40.0 points ahead" in imagenet_finding(tmp_path)
    write_result(tmp_path, made(PLAN.step("final-simsiam-0"), {**weak, "linear": 31.5}, status="collapsed"))
    assert "SimSiam's collapsed run has a linear accuracy of 31.5, the lower rate 30.0" in imagenet_finding(tmp_path)


def test_a_row_that_was_measured_in_part_says_so_and_has_no_rank(tmp_path: Path) -> None:
    whole, part = dict.fromkeys(ACCURACIES, 50.0), {"knn": 40.0, "linear": 45.0}
    for name, values in (("final-supsiam-0", whole), ("final-supsiam-1", part), ("final-supcon-0", part)):
        write_result(tmp_path, made(PLAN.step(name), values))
    main_table = imagenet_part(tmp_path).partition("### Differences")[0]
    lines = {line.split(" | ")[0]: line for line in main_table.splitlines()}
    assert "50.00 (1 seed)" in lines["| SupSiam"]
    assert lines["| SupSiam"].endswith("| 1.00 |")
    assert lines["| SupCon"].endswith("| - |")


def test_the_two_plans_are_not_mixed(tmp_path: Path, capsys) -> None:
    write_result(tmp_path / "imagenet", made(PLAN.step("final-supsiam-0"), {"knn": 50.0}))
    assert (
        main(
            [
                "page",
                "--results",
                str(tmp_path),
                "--out",
                str(tmp_path / "page.md"),
                "--figures",
                str(tmp_path / "figures"),
            ]
        )
        == 0
    )
    text = (tmp_path / "page.md").read_text()
    assert text.startswith("# Results")
    assert text.count("## ImageNet photographs, ResNet-50") == 1
    assert "0 of the 64 runs planned" in text
    assert main(["plan", "--results", str(tmp_path / "imagenet")]) != 0  # asked as files of the first plan
    assert "imagenet" in capsys.readouterr().err
    assert main(["plan", "--plan", "imagenet", "--results", str(tmp_path / "imagenet")]) == 0
    assert "1 of 36 runs are done" in capsys.readouterr().out


def test_the_results_in_the_repository_are_of_this_plan() -> None:
    names = {step.name for step in PLAN.steps}
    assert set(read_results(ROOT / "experiments" / "results" / "imagenet", PLAN)) <= names
