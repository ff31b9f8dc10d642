"""The later plans and their parts of the page: SupBYOL one change at a time, CIFAR-10, pools."""

import shlex

import pytest

from experiments.evidence.__main__ import RESULTS, main
from experiments.evidence.further_page import further_parts, supbyol_line
from experiments.evidence.further_plans import CHANGES, CHOSEN, PLANS, POOLS, cifar10_plan, pools_plan, supbyol_plan
from experiments.evidence.plan import rehearsal, settings_of, words_of
from experiments.evidence.plans import cifar_plan
from experiments.evidence.results import (
    ACCURACIES,
    choose,
    identity_of,
    read_results,
    result_of,
    waiting,
    write_result,
)
from supancl.cli import build_parser
from supancl.cli.flags import recipe_from_flags

from .made import result

FURTHER = {name: PLANS[name]() for name in ("supbyol", "cifar10", "pools")}


def built(words: list[str]):
    return recipe_from_flags(words[1], build_parser().parse_args(words))


def made(plan, step, level: float, known=None, **others):
    chosen = None if step.follows is None else choose(plan, known or {}, step.follows)
    values = {**dict.fromkeys(ACCURACIES, level), "projector_effective_rank": 50.0}
    found = result(plan, step, chosen, values, **others)
    return {**found, "identity": identity_of(step, plan, known or {})}


def pilots_of(plan, scores) -> dict:
    steps = [plan.step(f"pilot-supbyol-{number}") for number in range(len(scores))]
    return {step.name: made(plan, step, score) for step, score in zip(steps, scores, strict=True)}


def test_the_chosen_settings_are_those_of_the_pilots_on_cifar100() -> None:
    plan = cifar_plan()
    results = read_results(RESULTS, plan)
    assert {method: choose(plan, results, method) for method in CHOSEN} == CHOSEN


@pytest.mark.parametrize("name", FURTHER)
def test_every_run_of_a_plan_is_another_one_and_its_command_is_accepted(name) -> None:
    for plan in (FURTHER[name], rehearsal(FURTHER[name])):
        known = pilots_of(plan, [50.0, 51.0, 50.0, 50.0, 50.0, 50.0]) if name == "supbyol" else {}
        identities = [(identity_of(step, plan, known), step.seed, step.stage) for step in plan.steps]
        assert len(set(identities)) == len(plan.steps)
        for step in plan.steps:
            words = words_of(step, plan, settings_of(step, plan, step.follows and choose(plan, known, step.follows)))
            recipe = built(words)
            assert (recipe.train.epochs, recipe.data.holdout) == (step.epochs, 0.1)


def test_each_change_of_supbyol_differs_in_one_field_from_the_first() -> None:
    plan = supbyol_plan()
    base, *others = (
        built(words_of(step, plan, settings_of(step, plan, None))).fields()
        for step in (plan.step(f"pilot-supbyol-{number}") for number in range(len(CHANGES)))
    )
    changed = [{key for key in base if base[key][0] != other[key][0]} for other in others]
    assert changed == [
        {"loss.alpha"},
        {"branches.momentum"},
        {"branches.momentum_end"},
        {"optimizer.lr"},
        {"schedule.warmup_epochs"},
    ]


def test_final_runs_of_supbyol_wait_for_its_pilots_and_take_the_best_change() -> None:
    plan = supbyol_plan()
    final = plan.step("final-supbyol-0")
    assert identity_of(final, plan, {}) is None
    known = pilots_of(plan, [50.0, 49.0, 52.0, 50.0, 50.0, 50.0])
    settings = settings_of(final, plan, choose(plan, known, "supbyol"))
    assert settings["branches.momentum"] == 0.99
    assert "loss.alpha" not in settings
    # a final run of another change would not be taken for it
    best = made(plan, final, 60.0, known)
    assert result_of(final, plan, known | {final.name: best}) == best
    others = pilots_of(plan, [50.0, 55.0, 52.0, 50.0, 50.0, 50.0])
    assert result_of(final, plan, others | {final.name: best}) is None


def test_the_page_has_a_part_for_each_plan_with_results(tmp_path) -> None:
    assert further_parts(tmp_path) == ""
    plan = supbyol_plan()
    known = pilots_of(plan, [50.0, 51.25, 50.0, 50.0, 50.0, 50.0])
    for found in known.values():
        write_result(tmp_path / "supbyol", found)
    text = further_parts(tmp_path)
    assert "| alpha 0.5 | 51.25 | 51.25 | +1.25 | best |" in text
    assert "no change is clear. 5,000 images leave up to 2.0 points to chance, so alpha 0.5 (+1.2), " in supbyol_line(
        tmp_path
    )
    assert "final-supbyol-0" in text.partition("Not run:")[2].splitlines()[0]
    for seed, level in enumerate((60.0, 61.0, 62.0)):
        for method, higher in (("supbyol", 10.0), ("byol", 0.0), ("supsiam", 12.0)):
            step = plan.step(f"final-{method}-{seed}")
            write_result(tmp_path / "supbyol", made(plan, step, level + higher, known))
    write_result(tmp_path / "supbyol", made(plan, plan.step("pilot-supbyol-1"), 54.0))
    (tmp_path / "supbyol" / "pilot-supbyol-5.json").unlink()
    line = supbyol_line(tmp_path)
    assert "accuracy is changed by alpha 0.5 (+4.0 points). 5,000 images" in line
    assert "Not tried yet: no warm-up." in line
    assert line.endswith(" [More](#supbyol-on-cifar-100-one-change-at-a-time).")
    write_result(tmp_path / "supbyol", known["pilot-supbyol-5"])
    write_result(tmp_path / "supbyol", known["pilot-supbyol-1"])
    assert "| SupBYOL (alpha 0.5) | 0, 1, 2 | 71.00 ± 1.41 |" in further_parts(tmp_path)
    assert "| SupBYOL (alpha 0.5) - BYOL | +10.00 [+7.73, +12.27] |" in further_parts(tmp_path)
    assert (
        "SupBYOL (alpha 0.5) - BYOL is +10.0 [+7.7, +12.3] points on CIFAR-100 and +10.0 [+7.7, +12.3] on CIFAR-10 "
        "(test images, 3 seeds each). SupSiam (alpha 0.5) - SupBYOL (alpha 0.5) is +2.0 [-0.3, +4.3] points on "
    ) in supbyol_line(tmp_path)
    assert waiting(plan, read_results(tmp_path / "supbyol", plan)) == []


def test_the_page_sets_cifar10_beside_the_paper_and_compares_pools_with_the_queue(tmp_path) -> None:
    plan = cifar10_plan()
    write_result(tmp_path / "cifar10", made(plan, plan.step("final-supsiam-0"), 93.0))
    write_result(tmp_path / "cifar10", made(plan, plan.step("final-crossentropy-0"), 95.0))
    text = further_parts(tmp_path)
    assert "| SupSiam | 93.00 | 94.73 | 93.00 | 61.76 |" in text
    assert "| cross-entropy | 0 | 95.00 |" in text
    plan = pools_plan()
    for title, level in (("queue of 4096", 70.0), ("prototypes", 68.0)):
        write_result(tmp_path / "pools", made(plan, plan.step(POOLS[title][0]), level))
    assert "| prototypes - queue of 4096 | -2.00 (no interval) |" in further_parts(tmp_path)


def test_a_part_alone_is_not_a_page(tmp_path, capsys) -> None:
    assert main(["page", "--plan", "pools", "--results", str(tmp_path)]) == 2
    assert "--plan" in capsys.readouterr().err


def test_commands_of_the_plans_are_shown_with_their_time(tmp_path, capsys) -> None:
    assert main(["plan", "--plan", "supbyol", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "pilot-supbyol-5" in shown
    assert "0 of 15 runs are done" in shown
    assert shlex.split(shown.splitlines()[0])[1] == "100"
