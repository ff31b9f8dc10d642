"""Mutants of `semi`: targets of samples without a label, and the pools' means of all classes."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.mutants.mutant import Group, Mutant

TESTS = ("tests/core/test_semi.py", "-k", "not traced")

LOSS = (
    Mutant("def needs_pool(self) -> bool:\n        return True", "def needs_pool(self) -> bool:\n        return False"),
    Mutant("own = cross_view.detach().to(means.dtype)", "own = cross_view.to(means.dtype)"),
    Mutant("own = cross_view.detach().to(means.dtype)", "own = cross_view.detach().flip(0).to(means.dtype)"),
    Mutant("own @ F.normalize(means, dim=1).mT / self.temperature", "own @ means.mT / self.temperature"),
    Mutant("own @ F.normalize(means, dim=1).mT / self.temperature", "own @ F.normalize(means, dim=1).mT * self.temperature"),
    Mutant("logits.masked_fill(~is_held, torch.finfo(logits.dtype).min).softmax(-1) * is_held", "logits.softmax(-1) * is_held"),
    Mutant("torch.finfo(logits.dtype).min).softmax(-1) * is_held", "torch.finfo(logits.dtype).min).softmax(-1)"),
    Mutant("(weights.amax(-1) >= self.confidence)", "(weights.amax(-1) < self.confidence)"),
    Mutant("(weights.amax(-1) >= self.confidence)", "(weights.amin(-1) >= self.confidence)"),
    Mutant("(weights.amax(-1) >= self.confidence) & ", ""),
    Mutant(" & (pool.clock >= self.warmup)", ""),
    Mutant("(pool.clock >= self.warmup)", "(pool.clock > self.warmup)"),
    Mutant(" & ~has_label(labels)\n", "\n"),
    Mutant("(weights @ means).to(target.dtype)", "(weights @ F.normalize(means, dim=1)).to(target.dtype)"),
    Mutant("(weights @ means).to(target.dtype)", "means[weights.argmax(-1)].to(target.dtype)"),
)
POOLS = (
    Mutant("(self.sums[:-1] / count.clamp(min=1)[:, None]).to(self.targets.dtype), count > 0", "self.sums[:-1].to(self.targets.dtype), count > 0"),
    Mutant("(self.sums[:-1] / count.clamp(min=1)[:, None]).to(self.targets.dtype), count > 0", "(self.sums[:-1] / count.clamp(min=1)[:, None]).to(self.targets.dtype), count >= 0"),
    Mutant("return self.prototypes[:-1], self.seen[:-1]", "return self.prototypes[:-1], torch.ones_like(self.seen[:-1])"),
)
WEIGHTED_POOLS = (
    Mutant("mass = torch.where(is_held, self.mass[:-1], 1.0)", "mass = torch.where(is_held, self.tally[:-1], 1.0)"),
)

GROUPS = (
    Group("core/losses.py", TESTS, LOSS), Group("core/pools.py", TESTS, POOLS),
    Group("core/weighted_pools.py", TESTS, WEIGHTED_POOLS),
)
