"""What the verdicts hang on: each assumption dropped in turn, worked out by hand or by scipy."""

import pytest
from scipy import stats

from experiments.evidence.plans import cifar_plan
from experiments.evidence.results import Evidence, Results
from experiments.evidence.sensitivity import (
    bold_by_welch,
    by_lender,
    by_methods_alone,
    by_welch,
    lender_deviation_range,
    sensitivity_lines,
)
from supancl.stats import welch_interval

from .made import result, whole

PLAN = cifar_plan()


def linear(**levels: tuple[float, ...]) -> Results:
    """Final runs that have a linear accuracy alone, by method and seed."""
    results = {name: one for name, one in whole({}).items() if name.startswith("pilot-")}
    for method, values in levels.items():
        for seed, value in enumerate(values):
            step = PLAN.step(f"final-{method}-{seed}")
            results[step.name] = result(PLAN, step, PLAN.pilots[method][0], {"linear": value})
    return results


def test_welchs_interval_is_scipys() -> None:
    ours, theirs = [70.0, 71.5, 72.0], [60.0, 66.0]
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    one = welch_interval(ours, theirs)
    assert (one.low, one.high) == pytest.approx((interval.low, interval.high))


def test_a_verdict_that_needs_equal_spreads_is_named() -> None:
    """Two seeds six points apart: pooled with three that agree they tell, by themselves they do not."""
    results = linear(supsiam=(74.0, 74.1, 74.2), simsiam=(58.0, 64.0), supcon=(70.0, 70.1, 70.2))
    assert [(each.pair, each.measure) for each in by_welch(Evidence(PLAN, results))] == [
        (("supsiam", "simsiam"), "linear")
    ]
    assert (
        "the verdict changes for 1: SupSiam (alpha 0.5) - SimSiam: linear; of "
        in sensitivity_lines(Evidence(PLAN, results))[0]
    )


def test_what_would_not_be_bold_without_equal_spreads_is_counted() -> None:
    """Two differences of three and three seeds; Bonferroni over both: t of .0125. One side does not vary by much."""
    results = linear(supsiam=(74.0, 74.001, 74.002), simsiam=(60.0, 60.5, 61.0), supcon=(72.6, 73.0, 73.4))
    near, far = (stats.t.ppf(1 - 0.0125, freedom) * 0.4 / 3**0.5 for freedom in (4, 2))  # pooled, and by itself
    assert near < 74.001 - 73.0 < far
    assert bold_by_welch(Evidence(PLAN, results)) == (2, 1)
    assert "changes for none; of 2 bold ones 1 stay bold." in sensitivity_lines(Evidence(PLAN, results))[0]


def test_lenders_that_are_alphas_are_left_out_in_turn() -> None:
    results = linear(supsiam=(74.0, 74.1, 74.2), simsiam=(60.0, 60.1, 60.2), supcon=(72.0,))
    assert by_methods_alone(Evidence(PLAN, results)) is None  # no alpha lends
    for seed, value in enumerate((70.0, 71.5, 73.0)):
        step = PLAN.step(f"alpha-0-{seed}")
        results[step.name] = result(PLAN, step, PLAN.pilots["supsiam"][0], {"linear": value})
    assert by_methods_alone(Evidence(PLAN, results)) == 1  # SupSiam - SupCon: +2.1, which the alpha's spread hides
    assert (
        "- The pooled rows include SupSiam's other alphas, which are one method with the same seeds: without "
        "them the verdict changes for 1."
    ) in sensitivity_lines(Evidence(PLAN, results))


def test_a_verdict_that_hangs_on_one_lender_is_named() -> None:
    results = linear(supsiam=(74.0, 74.1, 74.2), simsiam=(60.0, 70.0), supcon=(71.0,))
    assert [each.pair for each in by_lender(Evidence(PLAN, results))] == [
        ("supsiam", "supcon")
    ]  # 3 points, of .1 and of 7
    assert lender_deviation_range(Evidence(PLAN, results)) == pytest.approx((50**0.5 / 0.1, 50**0.5 / 0.1))
    assert by_lender(Evidence(PLAN, linear(supsiam=(74.0, 74.1, 74.2), simsiam=(60.0, 60.1), supcon=(71.0,)))) == []


def test_an_interval_that_ends_at_zero_is_named_with_its_word() -> None:
    reach = 2.7764 * 0.1 * (2 / 3) ** 0.5  # of four degrees of freedom
    gap = reach + 0.01
    results = linear(supsiam=(74.0, 74.1, 74.2), supcon=(74.0 + gap, 74.1 + gap, 74.2 + gap))
    told = "- Close calls, whose interval ends within 0.02 points of 0: SupSiam (alpha 0.5) - SupCon: linear (behind)."
    assert told in sensitivity_lines(Evidence(PLAN, results))
    clear = linear(supsiam=(74.0, 74.1, 74.2), supcon=(75.0, 75.1, 75.2))
    assert "Close calls" not in str(sensitivity_lines(Evidence(PLAN, clear)))


def test_nothing_to_compare_yet() -> None:
    assert sensitivity_lines(Evidence(PLAN, {})) == ["- no two methods can be compared yet"]
