"""All groups of mutants."""

from tests.mutants import branches, checkpoint, labels, losses, order, pools, probes, schedules, semi, views

GROUPS = tuple(
    group
    for module in (losses, labels, semi, pools, branches, schedules, probes, order, views, checkpoint)
    for group in module.GROUPS
)
