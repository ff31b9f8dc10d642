"""Tables that compare detectors from several encoders."""

from __future__ import annotations

from typing import Any

from supancl.detect.comparing import SCORES
from supancl.reports.tables import Table, mean_text, to_markdown

COLUMNS = ["encoder", "seeds", *SCORES, "training, s", "images/s", "GPU, GB"]


def comparison_row(name: str, group: dict[str, Any]) -> list[str]:
    """A row of the table: name, seeds, AP, AP50, AP75 with deviations, seconds, images per second, memory."""
    scores = [mean_text(group["spread"][key]["mean"], group["spread"][key]["std"], 2) for key in SCORES]
    costs = [(group["seconds"], ".0f"), (group["images_per_second"], ".1f"), (group["memory_gb"], ".1f")]
    return [
        name,
        str(len(group["seeds"])),
        *scores,
        *("-" if value is None else f"{value:{number_format}}" for value, number_format in costs),
    ]


def comparison_markdown(result: dict[str, Any]) -> str:
    """The table, AP50 of every class and the remarks, as Markdown."""
    groups = result["groups"]
    class_names = sorted({name for group in groups.values() for name in group["classes_AP50"]})
    by_class = [
        [name, *(mean_text(group["classes_AP50"].get(name), None, 1) for group in groups.values())]
        for name in class_names
    ]
    tables = [
        Table(COLUMNS, [comparison_row(name, group) for name, group in groups.items()]),
        Table(["AP50 of", *groups], by_class),
    ]
    notes = [f"Note: {remark}.\n" for remark in result["remarks"]]
    return "\n".join([*map(to_markdown, tables), *notes])
