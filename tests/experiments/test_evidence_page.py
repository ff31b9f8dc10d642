"""RESULTS.md: made from the files alone, answers by rule, and says what is missing."""

import csv
import doctest
import io
import re
from pathlib import Path

import pytest
from scipy import stats

from experiments.evidence import findings, results, studies, tables
from experiments.evidence.__main__ import ROOT, main
from experiments.evidence.claims import (
    best_alpha_lines,
    best_alphas,
    collapse_lines,
    describe_verdicts,
    differences,
    pair_lines,
    significant_measures,
    variance_lines,
    variance_summary,
)
from experiments.evidence.figures import draw, drawings
from experiments.evidence.findings import known_lines, readme_block
from experiments.evidence.further_plans import cifar10_plan
from experiments.evidence.imagenet_page import imagenet_summary
from experiments.evidence.page import slug, update_readme, whole_page, write_page
from experiments.evidence.plans import cifar_plan
from experiments.evidence.results import (
    ACCURACIES,
    Evidence,
    Gap,
    gap,
    mean_text,
    read_results,
    waiting,
    write_result,
)
from experiments.evidence.run_table import LATER_PLANS, runs_table
from experiments.evidence.studies import all_studies, studies_section, studies_sentence, studies_table
from experiments.evidence.tables import SOLO_LEARN, by_commit, ratio_cell
from supancl.errors import BadInput
from supancl.recipes import recipe
from supancl.recipes.cifar import NOT_IN_PAPER
from supancl.stats import PooledDeviation, pooled_deviation
from tests.files import mentions

from .made import pilot_results, result, whole

PLAN = cifar_plan()
LEVELS = {
    "supsiam": 74.0,
    "simsiam": 58.0,
    "supcon": 70.0,
    "simclr": 60.0,
    "alpha-0": 70.0,
    "alpha-0.2": 72.0,
    "alpha-0.8": 73.0,
    "alpha-1": 58.0,
    "collapse-neither": 1.0,
    "collapse-pool": 70.0,
    "collapse-ema": 69.0,
    "collapse-pool+ema": 71.0,
    "collapse-harsh-neither": 1.0,
    "collapse-harsh-pool": 70.0,
}


def test_results_md_is_what_the_files_give() -> None:
    results = read_results(ROOT / "experiments" / "results", PLAN)
    folder = ROOT / "experiments" / "results"
    figures = list(drawings(Evidence(PLAN, results), folder / "maps"))
    page = whole_page(Evidence(PLAN, results), figures, folder)
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == page, "run `make results`"
    (shown,) = re.findall(r"<!-- results -->\n(.*?)<!-- end results -->", (ROOT / "README.md").read_text(), re.S)
    assert shown == readme_block(Evidence(PLAN, results), imagenet_summary(folder / "imagenet")), "run `make results`"
    table = runs_table(Evidence(PLAN, results), folder)
    assert (folder / "runs.csv").read_text(encoding="utf-8") == table, "run `make results`"
    rows = {(row["plan"], row["run"]): row for row in csv.DictReader(io.StringIO(table))}
    assert len(rows) == len(results) + sum(len(list((folder / name).glob("*.json"))) for name in LATER_PLANS)
    one = read_results(folder / "imagenet")["final-simclr-0"]
    shown_row = rows["imagenet", "final-simclr-0"]
    assert (shown_row["command"], float(shown_row["pets"])) == (one["commands"][0], one["values"]["pets"])
    assert (shown_row["lr"], shown_row["AP"]) == ("0.1", "")  # of the recipe, which the command does not change
    advice = (ROOT / "docs" / "choosing.md").read_text()
    assert studies_table(all_studies(Evidence(PLAN, results), folder)) in advice, "run `make results`"


def test_studies_stand_side_by_side_once_there_are_two(tmp_path: Path) -> None:
    evidence, plan = Evidence(PLAN, whole(LEVELS)), cifar10_plan()
    assert studies_section(all_studies(evidence, tmp_path)) == studies_sentence(all_studies(evidence, tmp_path)) == ""
    for method, level in (("supsiam", 90.0), ("simsiam", 80.0)):
        for seed in (0, 1):
            step = plan.step(f"final-{method}-{seed}")
            values = {"linear": level + seed, "pets": level + seed}
            write_result(tmp_path / "cifar10", result(plan, step, None, values))
    studies = all_studies(evidence, tmp_path)
    (row,) = [line for line in studies_section(studies).splitlines() if "| SupSiam - SimSiam |" in line]
    assert "| +10.0 [+7.0, +13.0] | - |" in row  # CIFAR-10, then photographs
    assert "| 1 better, 5 not measured | - |" in row
    assert "after pretraining on CIFAR-10 " in studies_sentence(studies)


def test_every_figure_that_it_shows_is_there() -> None:
    results = read_results(ROOT / "experiments" / "results", PLAN)
    for name in drawings(Evidence(PLAN, results), ROOT / "experiments" / "results" / "maps"):
        assert (ROOT / "docs" / "figures" / name).stat().st_size > 5_000


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [results, tables, findings, studies], ids=lambda module: module.__name__)
def test_the_examples_hold(module) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > outcome.failed == 0


def test_a_difference_has_the_interval_of_the_two_sample_t_test() -> None:
    ours, theirs = [70.0, 70.4, 71.0], [68.0, 68.9, 68.5]
    found = gap(ours, theirs)
    reference = stats.ttest_ind(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    assert (found.verdict, gap(theirs, ours).verdict, found.borrowed) == ("helps", "hurts", False)
    assert gap([70.0, 75.0], [69.0, 74.0]).verdict == "no clear difference"


def test_one_seed_borrows_the_spread_of_others_or_says_that_nothing_can_be_told() -> None:
    alone = gap([70.0], [68.0, 68.4])
    assert alone == Gap(pytest.approx(1.8))
    assert alone.verdict == "one seed only"
    assert alone.text() == "+1.80 (no interval)"
    assert gap([70.0], [68.0], PooledDeviation(0.2, 1)).low is None  # one degree of freedom is no spread
    lent = gap([70.0], [68.0], PooledDeviation(0.2, 8))
    reach = stats.t.ppf(0.975, 8) * 0.2 * 2**0.5
    assert (lent.low, lent.high) == pytest.approx((2 - reach, 2 + reach))
    assert lent.borrowed
    assert lent.text().endswith("]*")
    assert gap([], [1.0]) is None


def test_the_mean_has_students_interval() -> None:
    values = [70.1, 70.9, 70.2]
    low, high = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    assert mean_text(values) == f"{sum(values) / 3:.2f} ± {(high - low) / 2:.2f}"
    assert pooled_deviation([[1.0], [2.0]]) is None


# --- answers ----------------------------------------------------------------------------------------------------------


def test_the_words_follow_the_numbers() -> None:
    results = whole(LEVELS)
    (line, none) = pair_lines(
        Evidence(PLAN, results), (("supsiam", "simsiam"), ("supmoco", "moco2")), ("in-domain", "few-shot")
    )
    assert line == "- **SupSiam (alpha 0.5) - SimSiam**: in-domain: helps; few-shot: helps."
    assert "in-domain: no clear difference" in none
    lines = best_alpha_lines(Evidence(PLAN, results))
    assert len(lines) == 1 + len(ACCURACIES)
    assert lines[0].startswith("- **In 8 accuracies**: yes: 8 (k-NN, linear, ")
    assert lines[2].startswith("- linear: highest mean at 0.5; 0.5 - 0 = +4.00 [")
    assert lines[2].endswith("]: yes")
    assert best_alpha_lines(Evidence(PLAN, whole({**LEVELS, "alpha-0": 80.0})))[2].endswith(": no")
    told = collapse_lines(Evidence(PLAN, results))
    assert told[0] == (
        "- Weight decay 0.0001, the pool alone: did not collapse, unlike the run with neither; one seed each "
        "(k-NN 69.90 against 0.90 with neither: +69.00 [+68.08, +69.92] over test images; effective rank of the "
        "targets 80.0 against 80.0)."
    )
    assert told[3] == told[0].replace("0.0001", "0.0005")
    assert len(told) == 6
    mild = {name: one for name, one in results.items() if "harsh" not in name}
    assert collapse_lines(Evidence(PLAN, mild)) == told[:3]  # nothing is said of cells that were not asked for
    lost = whole({**LEVELS, "collapse-ema": 1.0})
    assert ": collapsed, as did the run with neither; one seed each (" in collapse_lines(Evidence(PLAN, lost))[1]
    well = whole({**LEVELS, "collapse-neither": 60.0})
    (line, *_) = collapse_lines(Evidence(PLAN, well))
    assert "no answer, because the run with neither did not collapse here, unlike in the paper" in line
    assert "k-NN 69.90 against 59.90 with neither: +10.00 [+9.70, +10.30]*; " in line  # both are healthy


def test_the_course_of_the_variance_is_told_as_it_is() -> None:
    results = whole(LEVELS)
    assert variance_lines(Evidence(PLAN, results))[0] == (
        "- S_W/S_T: 0 - 1 = +0.000 [+0.000, +0.000], smaller: no clear difference; its mean does not rise at each "
        "step of alpha 0, 0.2, 0.5, 0.8, 1 (0.500, 0.500, 0.500, 0.500, 0.500)"
    )
    for step in PLAN.steps:
        if step.stage == "alpha" or step.name.startswith(("final-supsiam", "final-simsiam")):  # which is alpha 1
            alpha = float(step.settings.get("loss.alpha", 0.5 if step.method == "supsiam" else 1))
            results[step.name]["values"] |= {"ratio": 0.5 + alpha / 5 + step.seed / 1000, "train_ratio": 0.5 - alpha}
            seeds = step.seed / 1000
            results[step.name]["values"] |= {"within": 0.5 + seeds, "total": 1 - alpha / 2 + seeds}
    cause, shrinks, grows, within, inside, total = variance_lines(Evidence(PLAN, results))
    assert cause == "- **On test images S_W/S_T falls because S_T grows; whether S_W falls is not clear.**"
    assert variance_summary(Evidence(PLAN, results)) == (
        "S_W/S_T falls: yes (test images), no (training images); S_W falls: no clear difference (test images); S_T "
        "grows: yes (test images)"
    )
    assert shrinks == (
        "- S_W/S_T: 0 - 1 = -0.200 [-0.202, -0.198], smaller: yes; its mean rises at each step of alpha "
        "0, 0.2, 0.5, 0.8, 1 (0.501, 0.541, 0.601, 0.661, 0.701)"
    )
    assert "smaller: no; its mean does not rise at" in grows
    assert inside == "- S_W alone, 0.5 - 1 = +0.000 [-0.002, +0.002]."
    assert within.startswith("- S_W alone: 0 - 1 = +0.000 [-0.002, +0.002], smaller: no clear difference; its mean")
    assert total == "- S_T alone: 0 - 1 = +0.500 [+0.498, +0.502]. The theorems hold S_T fixed."
    assert variance_lines(Evidence(PLAN, {})) == ["- not measured yet"]
    for name in [name for name in results if name.startswith(("alpha-0-", "alpha-1-", "final-simsiam"))]:
        within = 0.3 if "alpha-0-" in name else 0.6
        results[name]["values"] |= {"ratio": within, "within": within, "total": 1.0}
    assert variance_lines(Evidence(PLAN, results))[0] == "- **On test images S_W/S_T falls because S_W falls.**"


def test_an_example_worked_by_hand() -> None:
    """SupSiam 74, 75, 76 and SimSiam 60, 62, 64: +13; pooled variance (2 + 8) / 4, t of four degrees 2.776."""
    results = {name: one for name, one in whole(LEVELS).items() if name.startswith("pilot-")}
    for method, values in {"supsiam": (74, 75, 76), "simsiam": (60, 62, 64), "supcon": (73.0,)}.items():
        for seed, value in enumerate(values):
            step = PLAN.step(f"final-{method}-{seed}")
            results[step.name] = result(PLAN, step, PLAN.pilots[method][0], {"linear": float(value)})
    reach = 2.7764 * (10 / 4) ** 0.5 * (1 / 3 + 1 / 3) ** 0.5
    own = Evidence(PLAN, results).gaps("supsiam", "simsiam")["linear"]
    assert (own.mean, own.low, own.high) == pytest.approx((13, 13 - reach, 13 + reach), abs=1e-3)
    assert own.text() == "+13.00 [+9.42, +16.58]"
    lent = Evidence(PLAN, results).gaps("supsiam", "supcon")["linear"]  # one seed: the spread is that of the six others
    reach = 2.7764 * (10 / 4) ** 0.5 * (1 / 3 + 1) ** 0.5
    assert (lent.low, lent.high, lent.borrowed) == (
        pytest.approx(2 - reach, abs=1e-3),
        pytest.approx(2 + reach, abs=1e-3),
        True,
    )
    assert lent.verdict == "no clear difference"
    assert mean_text(Evidence(PLAN, results).methods["supsiam"].values("linear")) == "75.00 ± 2.48"  # 4.303 / sqrt(3)


def test_what_is_missing_of_a_sweep_or_a_cell_is_said() -> None:
    results = {name: one for name, one in whole(LEVELS).items() if not name.startswith("alpha-0.2-")}
    assert all(line.endswith(": yes (alpha 0.2 missing)") for line in best_alpha_lines(Evidence(PLAN, results))[1:])
    results["collapse-ema-0"] = {**results["collapse-ema-0"], "status": "collapsed", "values": {}}  # stopped by the run
    assert collapse_lines(Evidence(PLAN, results))[1] == (
        "- Weight decay 0.0001, EMA alone: collapsed, as did the run with neither; one seed each (k-NN - against 0.90 "
        "with neither; effective rank of the targets 80.0 against 80.0)."
    )


def test_a_run_that_failed_is_not_called_missing_and_what_was_not_measured_is_no_collapse() -> None:
    results = whole(LEVELS)
    failed = {"status": "failed", "why": "the loss is not finite", "values": {}}
    results["collapse-pool-0"] |= failed
    del results["collapse-ema-0"]["values"]["knn"]
    assert collapse_lines(Evidence(PLAN, results))[:2] == [
        "- Weight decay 0.0001, the pool alone: no answer, a run failed.",
        "- Weight decay 0.0001, EMA alone: no answer, k-NN was not measured.",
    ]
    results["final-simclr-0"] |= failed
    results["final-supmoco-0"] |= {"status": "collapsed", "values": {}}
    assert pair_lines(Evidence(PLAN, results), (("supcon", "simclr"), ("supmoco", "moco2")), ("transfer",)) == [
        "- **SupCon - SimCLR**: no answer (SimCLR failed).",
        "- **SupMoCo - MoCo-v2**: no answer (SupMoCo collapsed).",
    ]
    page = write_page(Evidence(PLAN, results), [])
    assert "| 0.0001 | yes | no | the run failed | - |" in page
    assert "| SimCLR | none (1 failed) | - |" in page
    assert "| SupSiam (alpha 0.5) | 0, 1, 2 | 74.00 ± 0.25 |" in page
    (row,) = re.findall(
        r"\| SupSiam \(alpha 0\.5\) \| 0, 1, 2 .* \| 100\.0 ± 0\.0 \| (.*?) \|", page.split("## Alpha")[0]
    )
    assert row == "1.00"  # the others are ranked although SupMoCo has no number
    assert "not measured yet" not in page


def test_the_best_of_several_has_bonferronis_interval() -> None:
    results = {name: one for name, one in whole(LEVELS).items() if not name.startswith("alpha") or name.endswith("-0")}
    spread_of = Evidence(PLAN, results).seed_spread("linear")
    (best,) = [one for one in best_alphas(Evidence(PLAN, results)) if one.measure == "linear"]
    deviation = spread_of.deviation * (1 / 3 + 1) ** 0.5
    assert (best.inner, best.end) == (0.5, 0)
    assert best.between.high - best.between.mean == pytest.approx(
        stats.t.ppf(1 - 0.05 / 2 / 3, spread_of.freedom) * deviation
    )  # three alphas inside
    single = gap([74.0, 74.1, 73.9], [73.5], PooledDeviation(0.2, 2))
    picked = gap([74.0, 74.1, 73.9], [73.5], PooledDeviation(0.2, 2), picked_of=3)
    assert single.high - single.mean < picked.high - picked.mean


def test_where_simsiams_pilots_chose_otherwise_both_simsiams_are_compared() -> None:
    results = whole(LEVELS)
    assert "Alpha 1 is SimSiam with these settings" not in write_page(Evidence(PLAN, results), [])  # they are one run
    results |= pilot_results({"simsiam": (1, 2, 3)})
    for seed in range(3):
        step = PLAN.step(f"final-simsiam-{seed}")
        results[step.name] = result(PLAN, step, PLAN.pilots["simsiam"][2], {"linear": 57.0 + seed / 10})
    page = write_page(Evidence(PLAN, results), [])
    assert (
        "SimSiam's\npilots. Here its mean is higher in 1 of 1 accuracies, clearly in 1 (linear); linear here - "
        "there = +0.90 ["
    ) in page
    assert (
        "- **SupSiam (alpha 0.5) - SimSiam with SupSiam's settings** (alpha 1 below, same learning rate and "
        "weight decay): helps: 8 of 8 accuracies; linear +16.00 ["
    ) in page


def test_which_commit_made_which_seeds_of_an_alpha_is_said_where_there_are_several() -> None:
    results = whole(LEVELS)
    assert by_commit(Evidence(PLAN, results).alphas) == ""
    for seed in (1, 2):
        results[f"alpha-0.8-{seed}"]["commit"] = "abc1234"
    told = by_commit(Evidence(PLAN, results).alphas)
    assert "alpha 0 (seed 0, 1, 2), 0.2 (seed 0, 1, 2), 0.5 (seed 0, 1, 2), 0.8 (seed 0), 1 (seed" in told
    assert "; abc1234 alpha 0.8 (seed 1, 2). A change between" in told


def test_a_ratio_of_no_spread_is_not_shown() -> None:
    """A collapsed run has S_W/S_T of what rounding left."""
    row = Evidence(PLAN, whole(LEVELS)).methods["simclr"]
    some = [{**row.results[0], "values": {"ratio": 0.9, "total": total}} for total in (0.5, 0.0)]
    assert [ratio_cell(row._replace(results=[each])) for each in some] == ["0.900", "-"]


def test_how_close_a_choice_was_is_shown() -> None:
    scores = {"supsiam": (60, 61.5, 61), "simsiam": (60, 60, 59), "supcon": (None, 50, None)}
    page = write_page(Evidence(PLAN, pilot_results(scores)), [])
    assert "| SupSiam (alpha 0.5) | 0.7 | 5e-05 | 61.50 | 59.50 |  | chosen, by 0.50 |" in page
    assert "| SimSiam | 0.7 | 0.0001 | 60.00 | 58.00 |  | chosen, the first of equal ones |" in page
    assert "| SupCon | 0.6 | 0.0005 | 50.00 | 48.00 |  | chosen, the only one with a score |" in page
    assert "uncertain by up to 1.4 points" in page


def test_a_result_that_the_plan_would_make_otherwise_does_not_count(tmp_path: Path) -> None:
    results = whole(LEVELS)
    other = pilot_results({"supcon": (1, 2, 3)})  # chosen anew: the finals were made with the first
    names = {step.name for step in waiting(PLAN, {**results, **other})}
    assert names == {f"final-supcon-{seed}" for seed in range(3)}
    write_result(tmp_path, {**results["pilot-supcon-0"], "settings": {"optimizer.lr": 0.5}})
    with pytest.raises(BadInput, match=mentions("pilot-supcon-0.json", "settings")):
        read_results(tmp_path, PLAN)


def test_measures_that_disagree_are_named() -> None:
    found = {"knn": Gap(1, 0.5, 1.5), "linear": Gap(-1, -1.5, -0.5)}
    assert (
        describe_verdicts(found, ("knn", "linear"), {"helps": "ahead", "hurts": "behind"})
        == "ahead (k-NN), behind (linear)"
    )
    assert describe_verdicts({}, ("knn",), {}) == "not measured yet"


def test_seeds_of_a_method_are_one_row_and_a_run_in_two_tables_counts_once_in_the_spread() -> None:
    results = whole(LEVELS, noise=0.3)
    assert Evidence(PLAN, results).methods["supsiam"].values("linear") == pytest.approx([73.7, 74.0, 74.3])
    assert Evidence(PLAN, results).alphas[0.5].seeds == "0, 1, 2"
    # supsiam, which is alpha .5, simsiam, which is alpha 1 here, supcon, crossentropy, alpha 0, .2 and .8
    assert Evidence(PLAN, results).seed_spread("linear") == PooledDeviation(pytest.approx(0.3), 7 * 2)
    assert Evidence(PLAN, results).gaps("supsiam", "nobody") == {}


def test_alpha_one_is_taken_from_simsiam_where_it_is_the_same_run() -> None:
    results = whole(LEVELS)
    kept = {name: one for name, one in results.items() if not name.startswith("alpha-1-")}
    names = [one["name"] for one in Evidence(PLAN, kept).alphas[1.0].results]
    assert names == [f"final-simsiam-{seed}" for seed in range(3)]


def test_a_verdict_is_bold_where_it_stands_with_an_interval_for_all_differences_of_the_page() -> None:
    """SupCon has one seed, so it borrows a spread and is never bold; t of 4 degrees is 2.78, of 16 differences 7.0."""
    results = {name: one for name, one in whole(LEVELS).items() if name.startswith("pilot-")}
    for method, levels in {"supsiam": (70.0, 71.0, 72.0), "simsiam": (49.0, 50.0, 51.0), "supcon": (60.0,)}.items():
        for seed, level in enumerate(levels):
            step = PLAN.step(f"final-{method}-{seed}")
            results[step.name] = result(PLAN, step, PLAN.pilots[method][0], dict.fromkeys(ACCURACIES, level))
    assert len(differences(Evidence(PLAN, results))) == 16
    assert {one.text() for one in differences(Evidence(PLAN, results))} == {
        "+21.00 [+18.73, +23.27]",
        "+11.00 [+7.79, +14.21]*",
    }  # 2.776 * sqrt(2/3) = 2.27 and 2.776 * sqrt(1 + 1/3) = 3.21; widened 5.6 and 7.9, which still leave out 0
    assert stats.t.ppf(1 - 0.025 / 16, 4) * (4 / 3) ** 0.5 == pytest.approx(7.2, abs=0.9)
    assert significant_measures(Evidence(PLAN, results), "supsiam", "simsiam") == set(ACCURACIES)
    assert significant_measures(Evidence(PLAN, results), "supsiam", "supcon") == set()
    page = write_page(Evidence(PLAN, results), [])
    assert "| SupSiam (alpha 0.5) - SimSiam | **+21.00 [+18.73, +23.27]** |" in page
    assert "| SupSiam (alpha 0.5) - SupCon | +11.00 [+7.79, +14.21]* |" in page
    assert "| SupSiam (alpha 0.5) - SimSiam | **helps: 2 of 2** | **helps: 2 of 2** | **helps: 4 of 4** |" in page
    assert "| SupSiam (alpha 0.5) - SupCon | ahead: 2 of 2 | ahead: 2 of 2 | ahead: 4 of 4 |" in page
    assert (
        "Of 16 differences 16 have a 95% interval that leaves out 0. 8 have several seeds on both sides; of these 8 "
        "still leave out 0 if every interval is widened for all 16 (Bonferroni): these are bold. 8 have one seed on a "
        "side and borrow the deviation of SimSiam and SupSiam (4 degrees of freedom); none of them is bold."
    ) in page
    assert (
        "borrow the deviation of SupCon, SimSiam, SupSiam, cross-entropy, alpha 0, alpha 0.2 and alpha 0.8 "
        "(14 degrees of freedom);"
    ) in write_page(Evidence(PLAN, whole(LEVELS)), [])


def test_what_the_paper_has_of_a_pair_stands_below_it_and_its_alphas_are_said() -> None:
    page = write_page(Evidence(PLAN, whole(LEVELS)), [])
    ours, paper = page.split("| SupSiam (alpha 0.5) - SimSiam | **+")[1].splitlines()[:2]
    assert ours.startswith("16.00 [")
    assert paper == "| paper | - | +4.42 | +6.38 | - | - | - | - | - |"  # 75.05 - 70.63, 85.19 - 78.81
    assert "Alpha is 0.5 in SupSiam and 0.8 in SupBYOL, as in App. H" in page
    (below,) = re.findall(r"\| SupSiam \(alpha 0\.5\) - cross-entropy \| [*]*[+-]\d.*\n\| (.*?) \|", page)
    assert below == "SupBYOL (alpha 0.8) - SupCon"  # App. H has no cross-entropy


# --- the page ---------------------------------------------------------------------------------------------------------


def test_a_whole_plan_leaves_nothing_open(tmp_path: Path) -> None:
    results = whole(LEVELS)
    figures = draw(Evidence(PLAN, results), tmp_path / "none", tmp_path / "figures")
    assert figures == ["cifar100-alpha.png", "cifar100-differences.png", "cifar100-labels.png"]
    assert all((tmp_path / "figures" / name).stat().st_size > 5_000 for name in figures)
    page = write_page(Evidence(PLAN, results), figures)
    assert "not measured yet" not in page
    assert "not run yet" not in page
    assert "nothing; the plan is done" in page
    assert "64 of the 64 runs planned" in page
    assert "| SupSiam (alpha 0.5) | 0, 1, 2 | 74.00 ± 0.25 |" in page
    for value in (75.05, 85.19, *SOLO_LEARN.values()):
        assert f"{value:.2f}" in page
    assert "- collapse-neither-0: collapsed" in page
    assert "supancl evaluate knn RUN" in page
    linked = set(re.findall(r"\]\(#(.*?)\)", page))
    assert len(linked) == 12
    assert linked <= {slug(line.lstrip("# ")) for line in page.splitlines() if line.startswith("##")}
    assert all(
        len(row.split("|")) == len(table.splitlines()[0].split("|"))
        for table in page.split("\n\n")
        if table.startswith("| ")
        for row in table.splitlines()
    )


def test_a_part_of_it_says_what_is_missing() -> None:
    results = pilot_results({"supsiam": (60, 61, None)})
    step = PLAN.step("final-supsiam-0")
    results[step.name] = result(
        PLAN,
        step,
        PLAN.pilots["supsiam"][1],
        {"linear": 74.0, "knn": 73.0},
        not_measured={"transfer runs/x": "pets is not in data"},
    )
    page = write_page(Evidence(PLAN, results), [])
    assert "4 of the 64 runs planned" in page
    assert "SupSiam (alpha 0.5) - SimSiam**: not measured yet (SimSiam missing)" in page
    assert "- pilot-supsiam-2: failed: the loss is not finite" in page
    assert "`transfer runs/x` could not be measured: pets is not in data" in page
    assert "| SupSiam (alpha 0.5) | 0.7 | 5e-05 | 61.00 | 59.00 |  | chosen, by 1.00 |" in page
    assert "Not measured yet: alpha 0, 0.2, 0.8, 1." in page
    left = page.split("Missing: 60 runs.")[1].split("## ")[0]
    assert "- final runs: final-supsiam-1, final-supsiam-2, final-simsiam-0, " in left
    assert "final-supsiam-0," not in left
    assert "No two methods can be compared yet." in page


def test_the_command_writes_page_and_figures(tmp_path: Path, capsys) -> None:
    for one in whole(LEVELS).values():
        write_result(tmp_path / "results", one)
    (tmp_path / "results" / "maps").mkdir()
    points = '{"classes": ["bear", "ray"], "labels": [0, 1, 0], "points": [[0, 1], [2, 3], [1, 1]]}'
    (tmp_path / "results" / "maps" / "final-supsiam-0.json").write_text(points)
    flags = ["--results", str(tmp_path / "results"), "--out", str(tmp_path / "R.md"), "--figures", str(tmp_path / "f")]
    assert main(["page", *flags]) == 0
    said = capsys.readouterr().out
    assert (
        "64 runs; figures: cifar100-alpha.png, cifar100-differences.png, cifar100-labels.png, cifar100-maps.png" in said
    )
    page = (tmp_path / "R.md").read_text()
    assert "![maps of related classes](docs/figures/cifar100-maps.png)" in page
    assert "20 related classes" in page


def test_the_short_table_has_what_is_known_and_nothing_else(tmp_path: Path) -> None:
    assert readme_block(Evidence(PLAN, {})) == "Nothing is measured yet.\n"
    results = {name: one for name, one in whole(LEVELS).items() if "moco" not in name and "byol" not in name}
    told = readme_block(Evidence(PLAN, results))
    assert "| SupSiam (alpha 0.5) | yes | 3 | 74.0 ± 0.2 |" in told
    assert "| SupBYOL (alpha 0.8) |" not in told
    assert "On CIFAR-100 itself, SupSiam is better than SimSiam, SupCon and cross-entropy in both accuracies." in told
    assert len(told.splitlines()) == 12  # title, line, five methods, a blank line, two findings, a blank line, a link
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- results -->\nold\n<!-- end results -->\nafter\n")
    for _ in range(2):
        update_readme(page, Evidence(PLAN, results), tmp_path)
        assert page.read_text() == f"before\n<!-- results -->\n{told}<!-- end results -->\nafter\n"
    page.write_text("nothing")
    with pytest.raises(BadInput, match=mentions("marks", "<!-- results -->")):
        update_readme(page, Evidence(PLAN, results), tmp_path)


def test_the_findings_follow_the_numbers() -> None:
    anyhow, contrastive, standing, alpha, variance, collapse = known_lines(Evidence(PLAN, whole(LEVELS))).splitlines()
    assert anyhow.startswith(
        "- **Do CIFAR-100's labels help SimSiam and BYOL? It depends.** SupSiam against SimSiam: better in all 8"
    )
    assert "on CIFAR-100 no clear difference in both accuracies; on other data no clear" in anyhow
    assert "SupBYOL against BYOL (one seed of SupBYOL and BYOL)" in anyhow
    assert contrastive.startswith(
        "- **Do labels help SimCLR and MoCo-v2 on other data? It depends.** SupCon against SimCLR"
    )
    assert (
        "SupSiam against SupCon: better in all 8 accuracies, on CIFAR-100 by 4.0 to 4.0 points, on other data by"
        in standing
    )
    assert "between 0 (labels alone) and 1 (no labels) is clearly better than both ends in 8 of 8 accuracies" in alpha
    assert "is 0.50 with labels alone and 0.50 without labels. Is" in variance
    assert "Weight decay 0.0001: only the run with neither collapsed." in collapse
    levels = {**LEVELS, "supsiam": 50.0, "supbyol": 40.0, "byol": 60.0}
    worse = known_lines(Evidence(PLAN, whole(levels))).splitlines()[0]
    assert worse.startswith(
        "- **Do CIFAR-100's labels help SimSiam and BYOL? No.** SupSiam against SimSiam: on CIFAR-100 worse in both"
    )
    few = {name: one for name, one in whole(LEVELS).items() if name.startswith("pilot-")}
    assert known_lines(Evidence(PLAN, few)).count("Not measured yet.") == 4


# --- defaults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", PLAN.pilots)
def test_the_recipes_have_what_the_kept_pilots_settle(method: str) -> None:
    """App. H's learning rate stays, with the weight decay of the best pilot at it; others have both of the best."""
    results, (first, *_) = read_results(ROOT / "experiments" / "results", PLAN), PLAN.pilots[method]
    scores = {each: results[f"pilot-{method}-{n}"]["values"]["linear"] for n, each in enumerate(PLAN.pilots[method])}
    best = max(
        (each for each in scores if method in NOT_IN_PAPER or each.lr == first.lr), key=lambda each: scores[each]
    )
    optimizer = recipe(f"cifar100.{method}").optimizer
    assert (optimizer.lr, optimizer.weight_decay) == (best.lr, best.weight_decay)
