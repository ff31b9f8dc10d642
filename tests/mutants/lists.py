"""All groups of mutants."""

from tests.mutants import branches, checkpoint, losses, order, pools, probes, schedules, views

GROUPS = tuple(
    group
    for module in (losses, pools, branches, schedules, probes, order, views, checkpoint)
    for group in module.GROUPS
)
