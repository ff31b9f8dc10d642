"""The rows of the tables: what each method, alpha and cell reached, by measure and seed."""

from __future__ import annotations

from typing import NamedTuple

from experiments.evidence.plan import ALPHAS, CELLS, SELF_SUPERVISED, Plan, Step, cell_name
from experiments.evidence.results import Result, Results, alike
from supancl.recipes import recipe
from supancl.stats import Pooled, pooled

# name -> title and decimals
MEASURES: dict[str, tuple[str, int]] = {
    "knn": ("k-NN", 2),
    "linear": ("linear", 2),
    "crossed": ("CIFAR-10 linear", 2),
    "pets": ("Pets", 2),
    "omniglot_1": ("Omniglot 1-shot", 2),
    "omniglot_5": ("Omniglot 5-shot", 2),
    "traffic-signs_1": ("GTSRB 1-shot", 2),
    "traffic-signs_5": ("GTSRB 5-shot", 2),
    "ratio": ("S_W/S_T", 3),
    "train_ratio": ("S_W/S_T, train", 3),
    "effective_rank": ("effective rank", 1),
}
ACCURACIES = ("knn", "linear", "crossed", "pets", "omniglot_1", "omniglot_5", "traffic-signs_1", "traffic-signs_5")
KINDS = {
    "in-domain": ("knn", "linear"),
    "crossed": ("crossed", "pets"),
    "few-shot": ("omniglot_1", "omniglot_5", "traffic-signs_1", "traffic-signs_5"),
}
NAMES = {
    "simclr": "SimCLR",
    "supcon": "SupCon",
    "moco2": "MoCo-v2",
    "supmoco": "SupMoCo",
    "simsiam": "SimSiam",
    "supsiam": "SupSiam",
    "byol": "BYOL",
    "supbyol": "SupBYOL",
    "crossentropy": "cross-entropy",
}
# as rows and differences are called: a number of these two is of the alpha that App. H has for the method
TITLES = NAMES | {
    method: f"{NAMES[method]} (alpha {recipe(f'cifar100.{method}').fields()['loss.alpha'][0]:g})"
    for method in ("supsiam", "supbyol")
}


class Row(NamedTuple):
    """One set of settings with its seeds."""

    name: str
    results: list[Result]
    failed: int = 0  # runs without numbers, which are not in `results`

    def values(self, measure: str) -> list[float]:
        return [float(result["values"][measure]) for result in self.results if measure in result["values"]]

    def last(self, term: str) -> list[float]:
        """A training loss of the last epoch; without a pool and without labels l_sup is l_ssl, so there is none."""
        return [
            float(result["last"][term])
            for result in self.results
            if term in result["last"] and not (term == "sup" and result["method"] in SELF_SUPERVISED.values())
        ]

    @property
    def seeds(self) -> str:
        return ", ".join(str(result["seed"]) for result in self.results)

    @property
    def collapsed(self) -> int:
        return sum(result["status"] == "collapsed" for result in self.results)

    @property
    def lacking(self) -> str:
        """Why there are no numbers: no run was made, or it ended without them."""
        return "" if self.results else "failed" if self.failed else "missing"


def method_rows(plan: Plan, results: Results) -> dict[str, Row]:
    """By method, in the order of the paper's table; a method without a result has no results in its row."""
    order = [method for method in NAMES if method in plan.pilots]
    return {method: row_of(plan, results, NAMES[method], f"final-{method}-0") for method in order}


def alpha_rows(plan: Plan, results: Results) -> dict[float, Row]:
    """alpha .5 is SupSiam's final run; alpha 1 may be SimSiam's, where the pilots chose the same for both."""
    steps = {alpha: "final-supsiam-0" if alpha == 0.5 else f"alpha-{alpha:g}-0" for alpha in ALPHAS}
    return {alpha: row_of(plan, results, f"{alpha:g}", name) for alpha, name in steps.items()}


def cell_rows(plan: Plan, results: Results, harsh: bool = False) -> dict[tuple[bool, bool], Row]:
    return {key: row_of(plan, results, name, cell_name(*key, harsh=harsh)) for key, name in CELLS.items()}


def row_of(plan: Plan, results: Results, title: str, name: str) -> Row:
    """The run of that name with every seed there is."""
    step: Step | None = plan.step(name)
    found = [] if step is None else alike(step, plan, results)
    kept = [one for one in found if one["status"] != "failed"]
    return Row(title, kept, len(found) - len(kept))


def spread_rows(plan: Plan, results: Results) -> list[Row]:
    """The methods and alphas that have several seeds and so tell how far seeds lie apart; one that is in both, once."""
    rows: dict[str, Row] = {}
    named = {f"alpha {alpha:g}": row for alpha, row in alpha_rows(plan, results).items()}
    for name, row in {**{row.name: row for row in method_rows(plan, results).values()}, **named}.items():
        if len(row.results) > 1 and not row.collapsed:
            rows.setdefault(row.results[0]["identity"], row._replace(name=name))
    return list(rows.values())


def seed_spread(plan: Plan, results: Results, measure: str) -> Pooled | None:
    """How far seeds lie apart, over every method and alpha that has several."""
    return pooled(row.values(measure) for row in spread_rows(plan, results))
