"""Compare encoders: tables in which seeds of one recipe are averaged, and differences on the same episodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from supancl.errors import BadInput
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.evaluate.few_shot import describe_queries, span
from supancl.probes import FewShot, Ranking, Score, paired_difference, rank_encoders

Results = Sequence[dict[str, Any]]  # of protocols, each with its task, data and group


def check_seeds(encoders: Sequence[EvaluatedEncoder]) -> None:
    """Refuse two encoders of one recipe with the same weights or seed: a row is a mean over different seeds."""
    for one, other in combinations(encoders, 2):
        if one.group != other.group or one.recipe is None or other.recipe is None:
            continue
        if one.weights == other.weights:
            raise BadInput(
                f"{one.where} and {other.where} have the same weights and would count as two seeds of "
                f"{one.label}; name one of them"
            )
        if one.recipe.train.seed == other.recipe.train.seed:
            raise BadInput(
                f"{one.where} and {other.where} are both of seed {one.recipe.train.seed} and would count as "
                f"two seeds of {one.label}; name one of them, or train the other with another --seed"
            )


def rankings(results: Results) -> dict[str, Ranking]:
    """One table a protocol: a row an encoder, seeds of the same settings averaged.

    A column in which an encoder met images that it was trained on is shown, and ranks nobody.
    """
    tables: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    names = labels(results)
    for result in results:
        row = tables.setdefault(result["task"], {}).setdefault(names[result["group"]], {})
        row.setdefault(result["data"], []).append(result)
    return {
        protocol: rank_encoders(
            {encoder: {data: scored(found) for data, found in row.items()} for encoder, row in rows.items()},
            unranked={data for task, data in _seen(results) if task == protocol},
        )
        for protocol, rows in tables.items()
    }


def scored(found: Results) -> Score | list[float]:
    """The accuracies of several seeds; of one run its accuracy, with the interval of few-shot."""
    if len(found) == 1:
        return Score(found[0]["accuracy"], found[0].get("interval"))
    return [result["accuracy"] for result in found]


def labels(results: Results) -> dict[str, str]:
    """group -> what its row is called; groups of one name are distinguished by their folders, else by their paths."""
    first = {result["group"]: result for result in reversed(results)}
    spoken = {group: result["label"] for group, result in first.items()}
    folders = {group: Path(result["encoder"]).name for group, result in first.items()}
    paths = {group: str(result["encoder"]) for group, result in first.items()}
    for further in (folders, paths):
        named = list(spoken.values())
        spoken = {
            group: name if named.count(name) == 1 else f"{first[group]['label']} ({further[group]})"
            for group, name in spoken.items()
        }
    return {group: spoken[group] for group in dict.fromkeys(result["group"] for result in results)}


def unlike(results: Results) -> list[str]:
    """A warning for each column whose encoders were not tested on the same images."""
    columns: dict[tuple[str, str], set[str]] = {}
    for result in results:
        columns.setdefault((result["task"], result["data"]), set()).add(result.get("tested_on", ""))
    return [
        f"{data}: the encoders were tested on different images for {task} (a run keeps to what it held out), so "
        "this column does not compare them"
        for (task, data), images in columns.items()
        if len(images) > 1
    ]


def trained_on(results: Results) -> list[str]:
    """A warning for each column in which an encoder was tested on images that it was trained on."""
    names = labels(results)
    return [
        f"{data}: some of the images of {task} were trained on ({', '.join(names[group] for group in groups)}), so "
        "this column compares no encoders and counts in no average rank"
        for (task, data), groups in _seen(results).items()
    ]


def _seen(results: Results) -> dict[tuple[str, str], dict[str, None]]:
    """(protocol, data) -> the groups that were trained on some of its images."""
    seen: dict[tuple[str, str], dict[str, None]] = {}
    for result in results:
        if result.get("overlaps_training"):
            seen.setdefault((result["task"], result["data"]), {})[result["group"]] = None
    return seen


def drawn_from(results: Results) -> dict[str, str]:
    """Few-shot protocol -> what its episodes were drawn from, for the legend: `digits 450 images, 16 queries a class`.

    Results of before the queries were counted say what was asked for.
    """
    columns: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for result in results:
        if result.get("protocol") == "fewshot" and "images" in result:
            columns.setdefault(result["task"], {}).setdefault(result["data"], []).append(result)
    legends = {}
    for task, by_data in columns.items():
        parts = []
        for data, found in by_data.items():
            images = [result["images"] for result in found]
            parts.append(f"{data} {span(min(images), max(images))} images, {queries_of(found)}")
        legends[task] = "; ".join(parts)
    return legends


def queries_of(found: Results) -> str:
    """`16 queries a class`, as they were used."""
    used = [count for result in found for count in result.get("queries_used", [result["queries"]])]
    return f"{describe_queries(min(used), max(used))} a class"


def differences(results: Results) -> list[dict[str, Any]]:
    """Few-shot results of two rows on the same episodes: the difference with an interval of its own.

    Seeds of one recipe are averaged episode by episode first; the interval is that over episodes. Encoders are not
    compared on images that one of them was trained on.
    """
    cells: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    seen = _seen(results)
    for result in results:
        if result.get("protocol") == "fewshot" and (result["task"], result["data"]) not in seen:
            cell = cells.setdefault((result["task"], result["data"], result["drawn"]), {})
            cell.setdefault(result["group"], []).append(result)
    names, gaps = labels(results), []
    for (task, data, _), groups in cells.items():
        for one, other in combinations(groups, 2):
            gap = paired_difference(averaged(groups[one]), averaged(groups[other]))
            gaps.append(
                {
                    "protocol": task,
                    "data": data,
                    "a": names[one],
                    "b": names[other],
                    "runs": [len(groups[one]), len(groups[other])],
                    "difference": gap.mean,
                    "interval": gap.interval,
                }
            )
    return gaps


def averaged(found: Results) -> FewShot:
    """The mean of every episode over the seeds."""
    first = found[0]
    episodes = torch.tensor([result["accuracies"] for result in found], dtype=torch.float64).mean(0)
    ways, shots, queries, seed = (first[name] for name in ("ways", "shots", "queries", "seed"))
    told = (ways, shots, queries, seed, (), first["drawn"], tuple(first.get("queries_used", (0, 0))))
    return FewShot(float(episodes.mean()), 0.0, tuple(episodes.tolist()), *told)
