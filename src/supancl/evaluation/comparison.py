"""Compare encoders: tables with the mean over seeds of a recipe, and differences on the same episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from supancl.errors import BadInput
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import data_title, figure_of
from supancl.probes import FewShot, Ranking, Score, paired_difference, rank_encoders

Results = Sequence[dict[str, Any]]  # results of protocols, with their task, data and group


def check_seeds(encoders: Sequence[EvaluatedEncoder]) -> None:
    """Refuse two encoders of one recipe with equal weights or seeds: a row is a mean over different seeds."""
    for first, second in combinations(encoders, 2):
        if first.group != second.group or first.recipe is None or second.recipe is None:
            continue
        if first.weights == second.weights or first.recipe.train.seed == second.recipe.train.seed:
            raise BadInput(
                f"{first.location} and {second.location} have the same weights or seed and would count as two seeds of "
                f"{first.label}; name one of them, or train the other with another seed"
            )


def rankings(results: Results) -> dict[str, Ranking]:
    """One table per protocol, with a row per encoder; seeds of the same settings are averaged.

    A data set on which an encoder was trained has a column, but does not count in ranks.
    """
    tables: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    names, overlapping = row_labels(results), _overlapping_groups(results)
    for result in results:
        row = tables.setdefault(result["task"], {}).setdefault(names[result["group"]], {})
        row.setdefault(data_title(result["data"], result), []).append(result)
    return {
        protocol: rank_encoders(
            {
                encoder: {data: score_seeds(seed_results) for data, seed_results in row.items()}
                for encoder, row in rows.items()
            },
            unranked={
                data_title(result["data"], result)
                for result in results
                if (result["task"], result["data"]) in overlapping and result["task"] == protocol
            },
        )
        for protocol, rows in tables.items()
    }


def score_seeds(seed_results: Results) -> Score | list[float]:
    """The figures of several seeds, or the Score of a single run, with its interval over episodes if it has one."""
    values = [figure.value for result in seed_results if (figure := figure_of(result))]
    return Score(values[0], seed_results[0].get("interval")) if len(values) == 1 else values


def row_labels(results: Results) -> dict[str, str]:
    """group -> label of its row; equal labels are distinguished by folder, else by path."""
    first = {result["group"]: result for result in reversed(results)}
    names = {group: result["label"] for group, result in first.items()}
    folders = {group: Path(result["encoder"]).name for group, result in first.items()}
    paths = {group: str(result["encoder"]) for group, result in first.items()}
    for suffixes in (folders, paths):
        taken_names = list(names.values())
        names = {
            group: name if taken_names.count(name) == 1 else f"{first[group]['label']} ({suffixes[group]})"
            for group, name in names.items()
        }
    return {group: names[group] for group in dict.fromkeys(result["group"] for result in results)}


def different_images_warnings(results: Results) -> list[str]:
    """A warning for each column whose encoders were tested on different images."""
    columns: dict[tuple[str, str], set[str]] = {}
    for result in results:
        columns.setdefault((result["task"], result["data"]), set()).add(result.get("tested_on", ""))
    return [
        f"{data}: the encoders were tested on different images for {task} (each run uses its held-out images), so "
        "this column does not compare them"
        for (task, data), images in columns.items()
        if len(images) > 1
    ]


def overlap_warnings(results: Results) -> list[str]:
    """A warning for each column in which an encoder was tested on its training images."""
    names = row_labels(results)
    return [
        f"{data}: some images of {task} were trained on ({', '.join(names[group] for group in groups)}), so "
        "this column does not compare encoders and counts in no average rank"
        for (task, data), groups in _overlapping_groups(results).items()
    ]


def _overlapping_groups(results: Results) -> dict[tuple[str, str], dict[str, None]]:
    """(protocol, data) -> the groups whose training used some of its images."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for result in results:
        if result.get("overlaps_training"):
            groups.setdefault((result["task"], result["data"]), {})[result["group"]] = None
    return groups


def differences(results: Results) -> list[dict[str, Any]]:
    """Paired differences of few-shot results on the same episodes, with intervals over episodes.

    Seeds of one recipe are first averaged per episode. Encoders are not compared on images that one of them was trained
    on.
    """
    cells: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    overlapping = _overlapping_groups(results)
    for result in results:
        if result.get("protocol") == "fewshot" and (result["task"], result["data"]) not in overlapping:
            cell = cells.setdefault((result["task"], result["data"], result["drawn"]), {})
            cell.setdefault(result["group"], []).append(result)
    names, gaps = row_labels(results), []
    for (task, data, _), groups in cells.items():
        for first, second in combinations(groups, 2):
            gap = paired_difference(average_seeds(groups[first]), average_seeds(groups[second]))
            gaps.append(
                {
                    "protocol": task,
                    "data": data,
                    "a": names[first],
                    "b": names[second],
                    "runs": [len(groups[first]), len(groups[second])],
                    "difference": gap.mean,
                    "interval": gap.interval,
                }
            )
    return gaps


def average_seeds(seed_results: Results) -> FewShot:
    """The mean over seeds of each episode's accuracy."""
    first = seed_results[0]
    episodes = torch.tensor([result["accuracies"] for result in seed_results], dtype=torch.float64).mean(0)
    ways, shots, queries, seed = (first[name] for name in ("ways", "shots", "queries", "seed"))
    settings = (ways, shots, queries, seed, (), first["drawn"], tuple(first.get("queries_used", (0, 0))))
    return FewShot(float(episodes.mean()), 0.0, tuple(episodes.tolist()), *settings)
