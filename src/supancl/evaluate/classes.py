"""What the classes of a source must satisfy before anything is measured: each fault is one line that names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from supancl.errors import BadInput, counted
from supancl.evaluate.subject import Subject
from supancl.probes import FewShot


def check_same(classes: Sequence[str], where: str, splits: Mapping[str, Tensor], may_lack: bool = False) -> None:
    """All splits hold the classes of the first one, two at least; with `may_lack` some of them are enough."""
    sets = {name: set(labels[labels >= 0].tolist()) for name, labels in splits.items()}
    first, known = next(iter(sets.items()))
    for name, found in sets.items():
        if not found:
            raise BadInput(f"{where}: no labelled image in {name}, so there is nothing to compare; label some of them")
    if len(known) < 2:
        raise BadInput(
            f"{where}: only class {classes[next(iter(known))]!r} in {first}; a classifier needs at least two classes"
        )
    for name, found in sets.items():
        if known - found and not may_lack:
            raise BadInput(
                f"{where}: no image of {named(classes, known - found)} in {name}, which {first} has; add "
                "images of it, or leave the class out of every split"
            )
        if found - known:
            raise BadInput(
                f"{where}: {named(classes, found - known)} in {name} has no image in {first}; the label "
                "sets of the splits must be equal"
            )


def check_each(classes: Sequence[str], where: str, labels: Tensor, least: int, why: str) -> None:
    """Every class that is there has so many images."""
    found, sizes = torch.unique(labels[labels >= 0], return_counts=True)
    few = {int(label) for label in found[sizes < least]}
    if few:
        raise BadInput(
            f"{where}: {named(classes, few)} has fewer than {least} training images; {why} needs "
            f"{least}, so add images or leave the class out"
        )


def check_episodes(
    classes: Sequence[str], where: str, labels: Tensor, ways: int, shots: int, held_out: bool = False
) -> None:
    """Enough classes have an image to ask about after the shots are taken; only a way out that leads out is named."""
    found, sizes = torch.unique(labels[labels >= 0], return_counts=True)
    fit, small = int((sizes > shots).sum()), {int(label) for label in found[sizes <= shots]}
    if fit < ways:
        told = f" (too small: {named(classes, small)})" if small else ""
        part = " among those that the run held out" if held_out else ""
        ways_out = ["lower --ways or --shots"] if int((sizes > 1).sum()) > 1 else []
        ways_out += ["name other --data", "pretrain with a larger data.holdout"] if held_out else ["add images"]
        raise BadInput(
            f"{where}: {counted(fit, 'class has', 'classes have')} more than "
            f"{counted(shots, 'image')}{part}, {ways} ways need {ways} such{told}; {', or '.join(ways_out)}"
        )


def lacking_queries(labels: Tensor, outcome: FewShot) -> tuple[str, bool]:
    """What is to be said where classes had fewer queries than were asked for, and whether it needs a warning.

    One query less of a large data set is a remark. Where an episode takes a tenth of all the images or more, the
    interval says little of other images, because every episode asks about the same ones.
    """
    least, most = outcome.used
    if least >= outcome.queries:
        return "", False
    sizes = torch.unique(labels[labels >= 0], return_counts=True)[1]
    sizes = sizes[sizes > outcome.shots]
    shots = counted(outcome.shots, "shot")
    told = (
        f"{span(int(sizes.min()), int(sizes.max()))} images a class leave {queries_told(least, most)} at {shots}, "
        f"not {outcome.queries}"
    )
    images = int(sizes.sum())
    if 10 * outcome.ways * (outcome.shots + most) < images:
        return told, False
    return f"{told}; the interval is over episodes of the same {images:,} images", True


def span(least: int, most: int) -> str:
    """`5`, or `5 to 1,200`."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def queries_told(least: int, most: int) -> str:
    return f"{span(least, most)} quer{'y' if most == 1 else 'ies'}"


def warn_unknown(subject: Subject, classes: Sequence[str], where: str, known: Tensor, asked: Tensor) -> None:
    """An image whose class nobody votes for counts as wrong, which the reader of the figure should know."""
    strange = asked[~torch.isin(asked, known)]
    if len(strange):
        subject.reporter.warn(
            f"{where}: {named(classes, set(strange.tolist()))} has no training image; its "
            f"{counted(len(strange), 'image to judge counts', 'images to judge count')} as wrong"
        )


def named(classes: Sequence[str], labels: set[int]) -> str:
    """'class 'cat'', or 'classes 'cat', 'dog' and 3 more'."""
    names = [repr(classes[label]) for label in sorted(labels)]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"class{'es' if len(names) > 1 else ''} {', '.join(names[:5])}{more}"
