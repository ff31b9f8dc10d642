"""The plan: what is held out, what follows what, and which runs are one and the same."""

import shlex
from dataclasses import replace

import numpy as np
import pytest

from experiments.evidence.claims import best_alpha_lines, pair_lines
from experiments.evidence.further_plans import PLANS
from experiments.evidence.page import answers
from experiments.evidence.plan import Setting, identity, kind_of, recipe_of, rehearsal, settings_of, words_of
from experiments.evidence.plans import ALPHAS, CELLS, PILOTS, RELATED, cell, cifar_plan, final, sweep
from experiments.evidence.results import Evidence, choose, expected_seconds, identity_of, judging_seconds, waiting
from supancl.cli import build_parser
from supancl.cli.flags import recipe_from_flags
from supancl.core.pools import PoolSpec
from supancl.data.opening import from_arrays
from supancl.data.splits import DataSpec
from supancl.paper import collapse
from supancl.recipes import recipe
from supancl.recipes.cifar import NOT_IN_PAPER

from .made import pilot_results, result, whole

PLAN = cifar_plan()


def data(holdout: float):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 255, (2000, 4, 4, 3), dtype=np.uint8), np.arange(2000) % 100
    return from_arrays(images, labels, images[:300], labels[:300], spec=DataSpec(source="arrays", holdout=holdout))


def test_pilots_hold_a_tenth_of_every_training_class_out_although_there_is_a_test_split() -> None:
    step = PLAN.step("pilot-supsiam-0")
    found = data(step.settings["data.holdout"])
    assert (len(found.train), len(found.held_out), len(found.test)) == (1800, 200, 300)
    assert found.held_out.labels.bincount().tolist() == [2] * 100
    assert found.summary["held_out_from"] == "train"
    assert not set(found.train.index.tolist()) & set(found.held_out.index.tolist())


def test_final_runs_train_on_everything_and_their_monitor_sees_no_test_image() -> None:
    found = data(PLAN.step("final-supsiam-0").settings["data.holdout"])
    assert (len(found.train), len(found.held_out), len(found.test)) == (2000, 0, 300)


def test_the_issues_runs_are_all_there_once() -> None:
    names = [step.name for step in PLAN.steps]
    assert len(set(names)) == len(names)
    assert {step.method for step in PLAN.steps if step.stage == "pilot"} == set(PILOTS)
    assert [len(set(grid)) for grid in PILOTS.values()] == [3] * 9
    for method in ("simsiam", "supsiam", "supcon", "crossentropy"):
        assert [PLAN.step(f"final-{method}-{seed}").seed for seed in range(3)] == [0, 1, 2]
    assert all(PLAN.step(f"final-{method}-0").epochs == 100 for method in PILOTS)
    assert {step.epochs for step in PLAN.steps if step.stage == "pilot"} == {30}
    assert [step.epochs for step in PLAN.steps if step.stage == "collapse"] == [50] * 8
    assert len(RELATED) == len(set(RELATED)) == 20


@pytest.mark.parametrize("method", PILOTS)
def test_the_pilots_lie_around_the_recipe_and_the_papers_rate_comes_first(method: str) -> None:
    own = recipe(f"cifar100.{method}").optimizer
    rates = [setting.lr for setting in PILOTS[method]]
    assert own.lr in rates if method in NOT_IN_PAPER else own.lr == rates[0]
    assert own.weight_decay in [setting.weight_decay for setting in PILOTS[method]]
    assert own.reference_batch == recipe(f"cifar100.{method}").train.batch_size == 256


def test_what_can_share_a_captured_step_comes_in_a_row() -> None:
    names = [step.name for step in PLAN.steps]
    at = names.index("pilot-supmoco-0")
    assert names[at : at + 3] == ["pilot-supmoco-0", "pilot-supmoco-2", "pilot-supmoco-1"]
    assert [PILOTS["supmoco"][number][1] for number in (0, 2, 1)] == [1e-4, 1e-4, 5e-4]
    for run in (
        ["final-supsiam-0", "final-supsiam-1", "final-supsiam-2"],
        ["alpha-0-0", "alpha-0.2-0", "alpha-0.8-0", "alpha-1-0"],
    ):
        at = names.index(run[0])
        assert names[at : at + len(run)] == run
    assert kind_of(PLAN.step("alpha-0-0")) == kind_of(PLAN.step("pilot-supsiam-0")) == "supsiam"
    assert len({kind_of(step) for step in PLAN.steps if step.stage == "collapse"}) == 4


def test_the_first_25_minutes_answer_the_claim_with_intervals() -> None:
    names = [step.name for step in PLAN.steps]
    first = names[: names.index("alpha-1-0") + 1]
    levels = {"supsiam": 74.0, "simsiam": 58.0, "alpha-0": 70.0, "alpha-0.2": 72.0, "alpha-0.8": 73.0, "alpha-1": 58.0}
    results = {name: one for name, one in whole(levels).items() if name in first}
    assert len(results) == len(first) == 14
    (line,) = pair_lines(Evidence(PLAN, results), (("supsiam", "simsiam"),), ("in-domain", "transfer"))
    assert line == "- **SupSiam (alpha 0.5) - SimSiam** (one seed of SimSiam): in-domain: helps; transfer: helps."
    assert all(
        "]*: yes" in each for each in best_alpha_lines(Evidence(PLAN, results))[1:]
    )  # borrowed from SupSiam's three seeds
    compiled: set[str] = set()
    seconds = 0.0
    for name in first[:-1]:  # alpha 1 is SimSiam's run where their pilots agree
        step = PLAN.step(name)
        seconds += expected_seconds(step, PLAN, {}, kind_of(step) in compiled, judged=False)
        compiled.add(kind_of(step))
    assert 1200 < seconds < 1560


def test_the_next_25_minutes_answer_every_question_and_end_with_short_runs() -> None:
    names = [step.name for step in PLAN.steps]
    end = names.index("collapse-pool+ema-0") + 1
    results = {name: one for name, one in whole({"collapse-neither": 1.0}).items() if name in names[:end]}
    sections = answers(Evidence(PLAN, results)).split("### ")[1:]
    assert len(sections) == 7  # six questions, and what the answers hang on
    for section in sections:
        lines = [line for line in section.splitlines() if line.startswith("- ")]
        assert any("not measured yet" not in line for line in lines)
        assert all("not measured yet (SupMoCo and MoCo-v2 missing)" in line for line in lines if "not measured" in line)
    assert all(name.startswith("collapse-") for name in names[end - 4 : end])
    further = [name for name in names[end:] if name.startswith(("collapse-harsh-", "alpha-"))]
    assert names[-len(further) :] == further  # what nobody asked for comes last


def test_nothing_follows_pilots_that_come_later() -> None:
    done = set()
    for step in PLAN.steps:
        done.add(step.name)
        if step.follows is not None:
            assert {f"pilot-{step.follows}-{number}" for number in range(3)} <= done


@pytest.mark.parametrize(
    "step", [*PLAN.steps, *rehearsal(PLAN).steps[:20], *PLANS["digits"]().steps], ids=lambda step: step.name
)
def test_the_command_makes_the_recipe_that_is_meant(step) -> None:
    plan = next(plan for plan in (PLAN, rehearsal(PLAN), PLANS["digits"]()) if step in plan.steps)
    settings = settings_of(step, plan, Setting(0.123, 3e-5))
    words = words_of(step, plan, settings)
    args = build_parser().parse_args(shlex.split(shlex.join(words)))
    made = recipe_from_flags(args.recipe, args)
    meant = recipe_of(plan.family, step.method, step.epochs, settings)
    meant = meant.with_set({"train.seed": step.seed, "data.source": plan.data})
    assert replace(made, sources={}) == replace(meant, sources={})
    if step.follows is not None:
        assert (made.optimizer.lr, made.optimizer.weight_decay) == (0.123, 5e-4 if "harsh" in step.name else 3e-5)
    assert args.out == f"runs/{step.name}"


@pytest.mark.parametrize("key", CELLS)
def test_harsh_cells_differ_from_the_others_in_their_weight_decay_alone(key) -> None:
    plain, harsh = (settings_of(cell(*key, harsh=harsh), PLAN, Setting(0.7, 1e-4)) for harsh in (False, True))
    assert harsh == {**plain, "optimizer.weight_decay": 5e-4}
    assert PLAN.step(f"collapse-harsh-{CELLS[key]}-0").settings == cell(*key, harsh=True).settings


@pytest.mark.parametrize("key", CELLS)
def test_the_collapse_cells_are_those_of_the_collapse_study(key) -> None:
    base = recipe("cifar100.supsiam").with_set({"optimizer.lr": 0.5, "optimizer.weight_decay": 2e-4})
    study = collapse.cell_recipe(base, *key)
    ours = recipe_of("cifar100", "supsiam", 50, settings_of(cell(*key), PLAN, Setting(0.5, 2e-4)))
    for section in ("heads", "loss", "optimizer", "views", "schedule", "encoder", "branches"):
        assert getattr(ours, section) == getattr(study, section)
    assert ours.pool.kind == study.pool.kind
    assert ours.pool == study.pool or ours.pool.kind == "none"


# --- one and the same -------------------------------------------------------------------------------------------------


def built(step, chosen):
    return recipe_of("cifar100", step.method, step.epochs, settings_of(step, PLAN, chosen))


def test_alpha_one_is_simsiam_where_the_pilots_chose_the_same_and_only_there() -> None:
    one, siam = sweep(0)[-1], final("simsiam", 0)
    assert one.settings["loss.alpha"] == 1
    ours, theirs = built(one, Setting(0.7, 1e-4)), built(siam, Setting(0.7, 1e-4))
    assert identity(ours, "supsiam") == identity(theirs, "simsiam")
    assert identity(ours, "supsiam") != identity(built(siam, Setting(0.35, 1e-4)), "simsiam")
    # and truly: they differ in their names and in a pool that the loss never reads
    plain = {"name": "", "method": "", "paper": "", "sources": {}, "pool": PoolSpec()}
    assert replace(ours, **plain) == replace(theirs, **plain)
    assert not ours.loss.supervised


def test_every_other_pair_of_steps_differs_in_more_than_its_seed() -> None:
    seen: dict[tuple[str, int], str] = {}
    for step in PLAN.steps:
        if step.stage != "pilot" and step.name not in ("alpha-1-0", "alpha-1-1", "alpha-1-2"):
            key = (identity(built(step, Setting(0.7, 1e-4)), step.method), step.seed)
            assert key not in seen, (step.name, seen.get(key))
            seen[key] = step.name


def test_a_shared_run_is_planned_once() -> None:
    results = pilot_results({"supsiam": (3, 2, 1), "simsiam": (3, 2, 1)})
    names = [step.name for step in waiting(PLAN, results)]
    assert "final-simsiam-0" in names
    assert "alpha-1-0" not in names
    apart = pilot_results({"supsiam": (3, 2, 1), "simsiam": (1, 2, 3)})
    assert "alpha-1-0" in [step.name for step in waiting(PLAN, apart)]
    assert identity_of(PLAN.step("alpha-1-0"), PLAN, {}) is None


# --- choosing ---------------------------------------------------------------------------------------------------------


def test_the_best_pilot_is_taken_of_equal_ones_the_first() -> None:
    assert choose(PLAN, pilot_results({"supsiam": (60, 61, 59)}), "supsiam") == PILOTS["supsiam"][1]
    assert choose(PLAN, pilot_results({"supsiam": (60, 60, 59)}), "supsiam") == PILOTS["supsiam"][0]


def test_nothing_is_chosen_before_all_pilots_are_known_nor_where_none_trained() -> None:
    results = pilot_results({"supsiam": (60, 61, 59)})
    del results["pilot-supsiam-2"]
    assert choose(PLAN, results, "supsiam") is None
    assert choose(PLAN, pilot_results({"supsiam": (None, None, None)}), "supsiam") is None
    assert choose(PLAN, pilot_results({"supsiam": (None, 5, None)}), "supsiam") == PILOTS["supsiam"][1]


def test_expected_seconds_follow_what_was_measured() -> None:
    step = PLAN.step("pilot-supsiam-2")
    guessed = expected_seconds(step, PLAN, {})
    results = pilot_results({"supsiam": (60, 61, None)})
    results["pilot-supsiam-0"] |= {"images_per_second": 9_000.0}
    measured = expected_seconds(step, PLAN, results)
    assert guessed < measured == pytest.approx(8 + 30 * 45_000 / 9_000 + 30 * 0.05 + 24)  # the slowest of them
    longer = expected_seconds(PLAN.step("final-supsiam-0"), PLAN, results, compiled=False, judged=False)
    assert longer == pytest.approx(8 + 100 * 50_000 / 9_000 + 100 * 0.05 + 50)


def test_runs_side_by_side_are_expected_to_take_longer_and_measured_apart() -> None:
    step = PLAN.step("pilot-supsiam-2")
    results = pilot_results({"supsiam": (60, 61, None)})
    alone, shared = (expected_seconds(step, PLAN, {}, shared=with_others) for with_others in (False, True))
    assert shared - alone == pytest.approx(0.85 * 30 * 45_000 / 35_900)
    assert expected_seconds(step, PLAN, results, shared=True) == shared  # measured alone
    for number, speed in enumerate((20_000.0, 18_000.0)):
        results[f"pilot-supsiam-{number}"] |= {"images_per_second": speed, "shared": True}
    assert expected_seconds(step, PLAN, results, shared=True) == pytest.approx(8 + 75 + 1.5 + 24)
    assert len(ALPHAS) == 5


def test_one_run_that_was_alone_for_most_of_its_time_does_not_make_the_next_ones_fast() -> None:
    """A run that is expected too short is begun too late, and is lost with the machine."""
    step = PLAN.step("final-supmoco-0")
    guessed = expected_seconds(step, PLAN, {}, judged=False, shared=True)
    assert guessed == pytest.approx(8 + 5_000_000 / (26_900 / 1.85) + 5)
    results = pilot_results({"supmoco": (60,)})
    results["pilot-supmoco-0"] |= {"images_per_second": 26_988.3, "shared": True}
    assert expected_seconds(step, PLAN, results, judged=False, shared=True) == guessed
    results["pilot-supmoco-0"] |= {"images_per_second": 10_000.0}
    assert expected_seconds(step, PLAN, results, judged=False, shared=True) == pytest.approx(8 + 500 + 5)


def test_judging_is_expected_to_take_as_long_as_the_longest_with_as_many_evaluations() -> None:
    step = PLAN.step("final-supcon-0")
    results = pilot_results({"supcon": (3, 2, 1)})
    made = result(PLAN, PLAN.step("final-simsiam-0"), PILOTS["simsiam"][0], {}, judge_seconds=97.0)
    assert judging_seconds(step, PLAN, results) == 84
    results["final-simsiam-0"] = made | {"commands": ["supancl"] * 8}
    assert judging_seconds(step, PLAN, results) == 97
    assert judging_seconds(PLAN.step("pilot-supcon-0"), PLAN, results) == 24


def test_a_cell_with_a_momentum_branch_is_expected_at_supbyols_pace_and_tells_nothing_of_supsiams() -> None:
    plain, momentum = (PLAN.step(f"collapse-{name}-0") for name in ("pool", "ema"))
    images = 50 * 50_000
    assert expected_seconds(momentum, PLAN, {}, judged=False) == pytest.approx(8 + images / 26_900 + 50 * 0.05)
    results = pilot_results({"supsiam": (3, 2, 1)})
    results[momentum.name] = result(PLAN, momentum, PILOTS["supsiam"][0], {}, images_per_second=20_000.0)
    assert expected_seconds(plain, PLAN, results, judged=False) == pytest.approx(8 + images / 35_000 + 50 * 0.05)
    assert expected_seconds(PLAN.step("final-supbyol-0"), PLAN, results, judged=False) == pytest.approx(
        8 + 5_000_000 / 20_000 + 5
    )
