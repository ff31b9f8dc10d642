"""What an accuracy is compared with: random weights of the same architecture, and the weights a run started from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from supancl.core.encoders import PROJECTOR, Encoder
from supancl.errors import BadInput
from supancl.evaluate.encoder import EvaluatedEncoder
from supancl.probes.certainty import Judgement
from supancl.stats import TOO_FEW_IMAGES, Interval
from supancl.weights.start import load_init

RANDOM_SEED = 0
RANDOM, START = "random weights", "its start"
Ask = Callable[[EvaluatedEncoder], Judgement]  # what an encoder answers about always the same images


def build_random(evaluated: EvaluatedEncoder) -> Encoder:
    """The same architecture with the random weights of one fixed seed, so that its features are cached once."""
    device = evaluated.options.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(RANDOM_SEED)
        return evaluated.encoder.spec.build().eval()


def build_start(evaluated: EvaluatedEncoder) -> Encoder | None:
    """The encoder that the run started from with --init; None if there was none."""
    start = None if evaluated.run is None else evaluated.run.read_init()
    if start is None:
        return None
    return load_init(build_random(evaluated), start).eval()


def open_baselines(evaluated: EvaluatedEncoder) -> Iterator[tuple[str, EvaluatedEncoder]]:
    """The baselines that can be opened, by name; a warning for one that cannot."""
    if evaluated.options.layer == PROJECTOR:
        return  # neither has one
    for name, build in ((RANDOM, build_random), (START, build_start)):
        try:
            encoder = build(evaluated)
        except BadInput as error:
            evaluated.warn_once(f"{evaluated.location}: {name} is not compared: {error}")
            continue
        if encoder is not None:
            yield name, EvaluatedEncoder(f"{name} of {evaluated.label}", encoder, evaluated.options, evaluated.reporter)


def compare_with_baselines(
    evaluated: EvaluatedEncoder, judged: Judgement, ask: Ask, key: tuple[Hashable, ...] | None = None
) -> list[dict[str, Any]]:
    """The figure of each baseline on the same images, and the difference with its paired interval.

    `key` names the question: the same one about the same weights, as for a second run, is asked once.
    """
    rows = []
    for name, baseline in open_baselines(evaluated):
        try:
            theirs = _ask_once(baseline, ask, key)
        except (BadInput, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
            evaluated.warn_once(f"{evaluated.location}: {name} is not compared: {error}")
            continue
        gap = judged.minus(theirs)
        rows.append(
            {
                "name": name,
                "weights": baseline.weights,
                theirs.key: theirs.value,
                f"{theirs.key}_interval": list(theirs.interval[1:]),
                "difference": gap.mean,
                "difference_interval": [gap.low, gap.high],
            }
        )
    return rows


def _ask_once(baseline: EvaluatedEncoder, ask: Ask, key: tuple[Hashable, ...] | None) -> Judgement:
    sources = baseline.options.sources
    if sources is None or key is None:
        return ask(baseline)
    full_key = (baseline.weights, baseline.options.layer, baseline.options.normalize, *key)
    if full_key not in sources.answers:
        sources.answers[full_key] = ask(baseline)
    return sources.answers[full_key]


def verdict(images: int, interval: Interval, chance: float, baselines: list[dict[str, Any]]) -> str:
    """One line: whether the encoder is better than its start, or without one than random weights."""
    if images < TOO_FEW_IMAGES:
        return f"too few images to say: {images} of at least {TOO_FEW_IMAGES}"
    doubt = "" if interval.low > chance else f"; not clearly above chance ({chance:.1f}%)"
    if not baselines:
        return f"better than chance ({chance:.1f}%)" if not doubt else doubt.removeprefix("; ")
    last = baselines[-1]
    gap = Interval(last["difference"], *last["difference_interval"])
    if not gap.excludes_zero:
        return f"no clear difference from {last['name']}: {gap.mean:+.1f} [{gap.low:.1f}, {gap.high:.1f}] points{doubt}"
    word, low, high = ("better", gap.low, gap.high) if gap.mean > 0 else ("worse", -gap.high, -gap.low)
    return f"{word} than {last['name']} by {abs(gap.mean):.1f} [{low:.1f}, {high:.1f}] points{doubt}"
