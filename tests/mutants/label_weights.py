"""Mutants of what losses and pools do with several labels."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.mutants.mutant import Group, Mutant

TESTS = ("tests/core/test_label_weights.py",)

WEIGHTS = (
    Mutant("total = weights.sum(1, keepdim=True)\n    return weights", "total = weights.amax(1, keepdim=True)\n    return weights"),
    Mutant("* other_weights[:, column].to(dtype)", "* (other_weights[:, column] > 0).to(dtype)"),
    Mutant("for column in range(others.shape[1]):", "for column in range(1):"),
    Mutant("result += normalized[:, column, None] * (members", "result += 1 / pairs.shape[1] * (members"),
    Mutant("total = members.sum(1, keepdim=True)\n        result", "total = (members > 0).sum(1, keepdim=True)\n        result"),
    Mutant("torch.where(has_label(pairs)[:, None], result, self_mask.to(dtype))", "result"),
    Mutant("result += weights[:, column, None].to(dtype) * weight_of_class", "result += weight_of_class"),
    Mutant(".square().sum(1).sqrt() for", ".sum(1) for"),
    Mutant("(labels[..., 0] >= 0).any(1) if", "(labels[..., 0] >= 0).all(1) if"),
    Mutant("torch.where(numbers >= 0, numbers, classes)", "numbers.clamp(min=0)"),
)
POOLS = (
    Mutant("classes = torch.where(stored[:, None], classes, EMPTY)", "classes = classes.clone()"),
    Mutant("        self.weights[slot] = weights\n", ""),
    Mutant("        self.labels[slot] = classes\n", ""),
    Mutant("change[: len(slot)].neg_()", "change[: len(slot)].zero_()"),
    Mutant("signed = change * moved_weights", "signed = change"),
    Mutant("            self.mass.index_add_(0, row[:, column], signed[:, column])\n", "            self.mass.index_add_(0, row[:, column], change[:, column])\n"),
    Mutant("signed[:, column, None] * moved)", "change[:, column, None] * moved)"),
    Mutant("emptied = torch.where(self.tally[row] > 0, self.classes, row).flatten()", "emptied = row[:0].flatten()"),
    Mutant("        self.mass.index_fill_(0, emptied, 0.0)\n", ""),
    Mutant("own = torch.where(held, 0.0, normalized).sum(1) + (~has_label(labels))", "own = torch.where(held, 0.0, normalized).sum(1)"),
    Mutant("own = torch.where(held, 0.0, normalized).sum(1) + (~has_label(labels))", "own = (~has_label(labels)).to(normalized.dtype)"),
    Mutant("pooled += normalized[:, column, None] * (self.sums", "pooled += 1 / row.shape[1] * (self.sums"),
    Mutant("column = _draw_column(weights, uniform[..., 0])", "column = _draw_column((weights > 0).float(), uniform[..., 0])"),
    Mutant("cumulative = _as_integers(self.weights[:-1].flatten()[order])", "cumulative = _as_integers((self.weights[:-1] > 0).float().flatten()[order])"),
    Mutant("uniform[..., 1] * mass", "uniform[..., 0] * mass"),
    Mutant("// self.labels.shape[1]]", "% len(self.targets)]"),
    Mutant("torch.where(held, sampled.to(fallback.dtype), fallback[..., None, :])", "sampled.to(fallback.dtype)"),
    Mutant("row_range.select(torch.rand(shape, device=row.device), -3)", "torch.rand(*shape[:-3], len(row), *shape[-2:], device=row.device)"),
    Mutant("entries = targets.repeat_interleave(classes.shape[1], dim=0)", "entries = targets.repeat(classes.shape[1], 1)"),
    Mutant("members @ targets / torch.where(total > 0, total, 1.0)", "members @ targets"),
    Mutant("scale = torch.where(held[:, column], normalized[:, column], 0.0)", "scale = normalized[:, column]"),
    Mutant("own = rows[:, -1:] + (~has_label(labels))[:, None]", "own = rows[:, -1:]"),
    Mutant("torch.where(is_here & ~held, normalized, 0.0)", "torch.where(~held, normalized, 0.0)"),
)

SAME_CLASS = (
    Mutant("(labels[:, None] == others[None, :]) & (labels >= 0)[:, None]", "labels[:, None] == others[None, :]"),
    Mutant("(labels[:, None] == others[None, :]) & (labels >= 0)[:, None]", "(labels[:, None] == others[None, :]) & (labels > 0)[:, None]"),
)

GROUPS = (
    Group("core/label_weights.py", TESTS, WEIGHTS), Group("core/weighted_pools.py", TESTS, POOLS),
    Group("core/label_weights.py", ("tests/core/test_losses.py",), SAME_CLASS),
)
