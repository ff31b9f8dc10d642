"""Mutants of the schedules."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

GROUPS = (
    Group(
        "core/specs.py",
        ("tests/core/test_schedules.py",),
        (
            Mutant("if predictor and spec.predictor", "if not predictor and spec.predictor"),
            Mutant('spec.predictor == "constant":', 'spec.predictor == "follows":'),
            Mutant("if epoch < warmup:", "if epoch <= warmup:"),
            Mutant("offset = 1 / steps_per_epoch if", "offset = 0 if"),
            Mutant("offset = 1 / steps_per_epoch if", "offset = 1 if"),
            Mutant('granularity == "step" else 1  # so', 'granularity == "step" else 0  # so'),
            Mutant("float(step // steps_per_epoch)", "step / steps_per_epoch"),
            Mutant("(epoch + offset) / warmup", "(epoch + offset) / (warmup + 1)"),
            Mutant('if spec.decay == "constant":', 'if spec.decay != "constant":'),
            Mutant("return top * 0.5 * (1 + math.cos", "return top * 0.5 * (1 - math.cos"),
            Mutant("(epoch - decay_start) / (epochs - decay_start)", "epoch / epochs"),
            Mutant("/ (epochs - decay_start)", "/ epochs"),
            Mutant("(spec.restart_epoch, peak * spec.restart_rate) if", "(spec.restart_epoch, peak) if"),
            Mutant("(spec.restart_epoch, peak * spec.restart_rate) if", "(warmup, peak * spec.restart_rate) if"),
            Mutant("            return top\n", "            return peak\n"),
            Mutant("if start == end:\n        return lambda step: start", "if start == end:\n        return lambda step: 1.0"),
            Mutant("end - (end - start) * (1 + math.cos(math.pi * step", "start - (end - start) * (1 + math.cos(math.pi * step"),
            Mutant("(1 + math.cos(math.pi * step / steps)) / 2", "(1 - math.cos(math.pi * step / steps)) / 2"),
            Mutant("math.cos(math.pi * step / steps)", "math.cos(math.pi * step / (steps - 1))"),
            Mutant("math.cos(math.pi * step / steps)", "math.cos(2 * math.pi * step / steps)"),
            Mutant(
                "peak * min(1.0, (epoch + offset) / warmup)",
                "peak * (epoch + offset) / warmup",
                equal="epochs are counted in steps or whole, so within the warm-up (epoch + offset) / warmup is at most 1",
            ),
            Mutant(
                "    if start == end:\n        return lambda step: start\n",
                "",
                equal="with end - start = 0 the formula is `end`, exactly",
            ),
        ),
    ),
)
