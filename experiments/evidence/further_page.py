"""The later parts of RESULTS.md: SupBYOL one change at a time, CIFAR-10, pools; each from its folder of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.evidence.findings import join_names
from experiments.evidence.further_plans import (
    CHANGES,
    CHOSEN,
    EPOCHS,
    POOLS,
    cifar10_plan,
    named_plan,
    pools_plan,
    supbyol_plan,
)
from experiments.evidence.results import ACCURACIES as MEASURED
from experiments.evidence.results import (
    MEASURES,
    NAMES,
    Evidence,
    Row,
    best_pilot,
    read_evidence,
    waiting,
)
from experiments.evidence.results import TITLES as RESULT_TITLES
from experiments.evidence.study_page import (
    SPREAD_NOTE,
    accuracy_table,
    brief,
    differences,
    evaluated_with,
    left_over,
    ratio_table,
    row_gaps,
    seeds_text,
    texts,
)
from experiments.evidence.tables import HELD_OUT, image_uncertainty, table, unique
from supancl.paper.numbers import CIFAR, SIX
from supancl.stats import accuracy_half_width

TITLES = {measure: MEASURES[measure][0] for measure in MEASURED}
CONDITIONS = """{epochs} epochs, CIFAR ResNet-18, batch 256, bf16. 10% of the training images are held out: the ridge of
the linear probe is chosen on them. Test images are used once. {spread} Hardware: {hardware}. Commits: {commits}."""


def further_parts(results: Path) -> str:
    """All parts that have a result, as Markdown; `results` has a folder for each plan."""
    parts = {"supbyol": supbyol_part, "cifar10": cifar10_part, "pools": pools_part}
    return "".join(write_part(results / name, part) for name, part in parts.items())


def plans_line(results: Path) -> str:
    """Which further plans have runs left; empty if none has."""
    titles = {"supbyol": "SupBYOL one change at a time", "cifar10": "CIFAR-10 as the pretraining set", "pools": "pools"}
    states = []
    for name, title in titles.items():
        evidence = read_evidence(results / name, named_plan(name))
        planned, left = len(evidence.plan.steps), len(waiting(evidence.plan, evidence.results))
        states += [f"{title} ({planned - left} of {planned} runs done)"] if left else []
    return f"Also planned: {', '.join(states)}." if states else ""


def supbyol_line(results: Path) -> str:
    """Which changes of SupBYOL are larger than two accuracies on the held-out images differ by chance; empty without
    pilots."""
    evidence = read_evidence(results / "supbyol", supbyol_plan())
    linear = {
        title: float(values["linear"])
        for title, values in zip(CHANGES, pilot_values(evidence), strict=True)
        if "linear" in values
    }
    base, *changes = CHANGES
    if base not in linear or len(linear) < 2:
        return ""
    limit = accuracy_half_width(HELD_OUT, linear[base], linear[base])
    found = {title: linear[title] - linear[base] for title in changes if title in linear}
    clear = [f"{title} ({gain:+.1f} points)" for title, gain in found.items() if abs(gain) > limit]
    others = [f"{title} ({gain:+.1f})" for title, gain in found.items() if abs(gain) <= limit]
    untried = [title for title in changes if title not in linear]
    sentences = ["**What holds SupBYOL back?** Runs with one change each (one seed, linear probe on held-out images):"]
    sentences.append(f"accuracy is changed by {join_names(clear)}." if clear else "no change is clear.")
    if others:
        sentences.append(f"{HELD_OUT:,} images leave up to {limit:.1f} points to chance, so {join_names(others)} "
                         "may be nothing.")  # fmt: skip
    if untried:
        sentences.append(f"Not tried yet: {join_names(untried)}.")
    sentences += pair_sentences(supbyol_rows(evidence), SUPBYOL_PAIRS, "CIFAR-100", "CIFAR-10")
    return " ".join([*sentences, "[More](#supbyol-on-cifar-100-one-change-at-a-time)."])


def pair_sentences(rows: Mapping[str, Row], pairs: Sequence[tuple[str, str]], own: str, other: str) -> list[str]:
    """Each pair's difference in the linear accuracy on the data trained on, and on the other CIFAR."""
    return [
        f"{rows[ours].name} - {rows[theirs].name} is {brief(gaps['linear'])} points on {own} and "
        f"{brief(gaps['crossed'])} on {other} (test images, {seeds_text(rows[ours], rows[theirs])})."
        for ours, theirs in pairs
        if (gaps := row_gaps(rows, ours, theirs, ("linear", "crossed")))
    ]


def write_part(folder: Path, part: Callable[[Path], list[str]]) -> str:
    sections = [section for section in part(folder) if section]
    return "\n" + "\n".join(sections) if sections else ""


def conditions(evidence: Evidence) -> str:
    machine = {"hardware": unique(evidence, "hardware"), "commits": unique(evidence, "commit")}
    return CONDITIONS.format(epochs=EPOCHS, spread=SPREAD_NOTE, **machine)


# --- SupBYOL ----------------------------------------------------------------------------------------------------------

SUPBYOL_PAIRS = (("supbyol", "byol"), ("supsiam", "supbyol"))


def supbyol_part(folder: Path) -> list[str]:
    evidence = read_evidence(folder, supbyol_plan())
    if not evidence.results:
        return []
    rows = supbyol_rows(evidence)
    return [
        f"## SupBYOL on CIFAR-100, one change at a time\n\n{conditions(evidence)}\n",
        change_table(evidence),
        f"### With the best change\n{accuracy_table(rows, TITLES, 'method')}" if rows else "",
        differences(rows, SUPBYOL_PAIRS, TITLES),
        ratio_table(rows) if rows else "",
        left_over(evidence),
        evaluated_with(evidence),
    ]


def supbyol_rows(evidence: Evidence) -> dict[str, Row]:
    """The methods that have a final run; SupBYOL's name says what was changed."""
    best = best_pilot(evidence.plan, evidence.results, "supbyol")
    change = "" if best is None else f" ({list(CHANGES)[best]})"
    names = {"supbyol": NAMES["supbyol"] + change, "byol": NAMES["byol"], "supsiam": RESULT_TITLES["supsiam"]}
    rows = {method: evidence.row(name, f"final-{method}-0") for method, name in names.items()}
    return {method: row for method, row in rows.items() if row.results}


def pilot_values(evidence: Evidence) -> list[Mapping[str, float]]:
    """What was measured of each change; empty for those that were not run."""
    return [evidence.results.get(f"pilot-supbyol-{number}", {}).get("values", {}) for number in range(len(CHANGES))]


def change_table(evidence: Evidence) -> str:
    """The pilots: held-out accuracy of each change, and its difference to the setting without one."""
    best = best_pilot(evidence.plan, evidence.results, "supbyol")
    values = pilot_values(evidence)
    lines = []
    for number, (title, measured) in enumerate(zip(CHANGES, values, strict=True)):
        accuracies = [f"{measured[key]:.2f}" if key in measured else "-" for key in ("linear", "knn")]
        is_compared = number > 0 and "linear" in measured and "linear" in values[0]
        change = f"{measured['linear'] - values[0]['linear']:+.2f}" if is_compared else ""
        lines.append([title, *accuracies, change, "best" if number == best else ""])
    return f"""### What helps SupBYOL?

One seed each, evaluated on the {HELD_OUT:,} held-out training images, which leave an accuracy uncertain by up to
{image_uncertainty(HELD_OUT)} points, and a difference of two by a little more: smaller changes may be nothing. The
best one by linear accuracy is trained with three seeds and tested.

{table(["change", "linear, held out", "k-NN, held out", "change of linear", ""], lines)}"""


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------

CIFAR10_PAIRS = (
    ("supsiam", "simsiam"),
    ("supbyol", "byol"),
    ("supcon", "simclr"),
    ("supsiam", "supcon"),
    ("supsiam", "supbyol"),
)


def cifar10_part(folder: Path) -> list[str]:
    evidence = read_evidence(folder, cifar10_plan())
    measured = cifar10_rows(evidence)
    if not measured:
        return []
    titles = {**TITLES, "crossed": "CIFAR-100 linear"}
    return [
        f"## Pretrained on CIFAR-10\n\n{conditions(evidence)} Learning rate and weight decay are those that pilots "
        "chose on CIFAR-100; nothing was tuned on CIFAR-10. SupBYOL has alpha 0.8, SupSiam alpha 0.5. "
        "SupCon's projector lacks the authors' batch norm.\n"
        f"{accuracy_table(measured, titles, 'method')}",
        paper_table(measured),
        differences(measured, CIFAR10_PAIRS, titles),
        ratio_table(measured),
        left_over(evidence),
        evaluated_with(evidence),
    ]


def cifar10_rows(evidence: Evidence) -> dict[str, Row]:
    rows = {method: evidence.row(NAMES[method], f"final-{method}-0") for method in CHOSEN}
    return {method: row for method, row in rows.items() if row.results}


def paper_table(rows: Mapping[str, Row]) -> str:
    """Ours beside the paper's, for the methods that it has."""
    paper = {name: dict(zip(SIX, CIFAR[f"cifar10 {name}"], strict=True)) for name in ("cifar10", "cifar100")}
    lines = []
    for method in (method for method in rows if method in SIX):
        own, crossed = texts(rows[method], rows, ("linear", "crossed"))
        stated = {name: f"{by_method[method]:.2f}" for name, by_method in paper.items()}
        lines.append([rows[method].name, own, stated["cifar10"], crossed, stated["cifar100"]])
    return f"""### Beside the paper

Its Table H.1 has 1000 epochs instead of {EPOCHS}, other rates and another probe.

{table(["method", "CIFAR-10", "paper", "crossed to CIFAR-100", "paper"], lines)}"""


# --- pools ------------------------------------------------------------------------------------------------------------


def pools_part(folder: Path) -> list[str]:
    evidence = read_evidence(folder, pools_plan())
    rows = {title: evidence.row(title, name) for title, (name, _) in POOLS.items()}
    measured = {title: row for title, row in rows.items() if row.results}
    if not measured:
        return []
    base = next(iter(POOLS))
    pairs = [(title, base) for title in measured if title != base]
    return [
        f"## Which pool?\n\nSupSiam on CIFAR-100, alpha 0.5; one seed each. {conditions(evidence)}\n"
        f"{accuracy_table(measured, TITLES, 'pool')}",
        differences(measured, pairs, TITLES),
        left_over(evidence),
        evaluated_with(evidence),
    ]
