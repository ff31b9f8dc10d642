"""Mutants of what losses and pools do with several labels."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

TESTS = ("tests/core/test_label_weights.py",)

WEIGHTS = (
    Mutant("total = weights.sum(1, keepdim=True)\n        return weights", "total = weights.amax(1, keepdim=True)\n        return weights"),
    Mutant("== others.classes[:, column]) * weights[:, column]", "== others.classes[:, column]) * (weights[:, column] > 0)"),
    Mutant("for column in range(others.classes.shape[1]):", "for column in range(1):"),
    Mutant("result += shares[:, column, None] * (members", "result += 1 / shares.shape[1] * (members"),
    Mutant("total = members.sum(1, keepdim=True)\n        result", "total = (members > 0).sum(1, keepdim=True)\n        result"),
    Mutant("torch.where(labels.is_labelled[:, None], result, self_mask.to(dtype))", "result"),
    Mutant("result += weights[:, column, None] * weight_of_class", "result += weight_of_class"),
    Mutant(".square().sum(1).sqrt() for", ".sum(1) for"),
    Mutant("else (self.classes >= 0).any(1)", "else (self.classes >= 0).all(1)"),
    Mutant("torch.where(self.classes >= 0, self.classes, classes)", "self.classes.clamp(min=0)"),
)
POOLS = (
    Mutant("        self.labels[slot] = classes\n", ""),
    Mutant("            self.weights[slot] = weights\n", ""),
    Mutant("signed = change * torch.cat([self.weights[slot], weights])", "signed = change"),
    Mutant("self.mass.index_add_(0, row[:, column], signed[:, column])", "self.mass.index_add_(0, row[:, column], change[:, column])"),
    Mutant("signed[:, column, None] * moved)", "change[:, column, None] * moved)"),
    Mutant("            self.mass.index_fill_(0, emptied, 0.0)\n", "            pass\n"),
    Mutant("own = torch.where(is_held, 0.0, shares).sum(1) + (~read.is_labelled)", "own = torch.where(is_held, 0.0, shares).sum(1)"),
    Mutant("own = torch.where(is_held, 0.0, shares).sum(1) + (~read.is_labelled)", "own = (~read.is_labelled).to(shares.dtype)"),
    Mutant("pooled += shares[:, column, None] * (self.sums", "pooled += 1 / row.shape[1] * (self.sums"),
    Mutant("column = draw_column(labels.weights, uniform[..., 0])", "column = draw_column((labels.weights > 0).float(), uniform[..., 0])"),
    Mutant("cumulative = as_integers(self.weights[:-1].flatten()[order])", "cumulative = as_integers((self.weights[:-1] > 0).float().flatten()[order])"),
    Mutant("uniform[..., 1] * mass", "uniform[..., 0] * mass"),
    Mutant("// self.labels.shape[1]]", "% len(self.targets)]"),
    Mutant("torch.where(is_held, drawn.to(fallback.dtype), fallback[..., None, :])", "drawn.to(fallback.dtype)"),
    Mutant("targets = targets.repeat_interleave(classes.shape[1], dim=0)", "targets = targets.repeat(classes.shape[1], 1)"),
    Mutant("members @ targets / torch.where(total > 0, total, 1.0)", "members @ targets"),
    Mutant("share = torch.where(is_held[:, column], shares[:, column], 0.0)", "share = shares[:, column]"),
    Mutant("own = rows[:, -1:] + (~Labels.of(labels).is_labelled)[:, None]", "own = rows[:, -1:]"),
    Mutant("torch.where(is_here & ~is_held, shares, 0.0)", "torch.where(~is_held, shares, 0.0)"),
)

SAME_CLASS = (
    Mutant("(positive_weights(labels, others, dtype) | self_mask)", "positive_weights(labels, others, dtype)"),
    Mutant("weight / weight.sum(1, keepdim=True)", "weight"),
    Mutant("(mine == others.single[None, :]) & (mine >= 0)", "mine == others.single[None, :]"),
    Mutant("(mine == others.single[None, :]) & (mine >= 0)", "(mine == others.single[None, :]) & (mine > 0)"),
)

GROUPS = (
    Group("core/labels.py", TESTS, WEIGHTS), Group("core/pools.py", TESTS, POOLS),
    Group("core/labels.py", ("tests/core/test_losses.py",), SAME_CLASS),
)
