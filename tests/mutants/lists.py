"""All groups of mutants."""

from tests.mutants import branches, checkpoint, label_weights, losses, order, pools, probes, schedules, semi, views

GROUPS = tuple(
    group
    for module in (losses, label_weights, semi, pools, branches, schedules, probes, order, views, checkpoint)
    for group in module.GROUPS
)
