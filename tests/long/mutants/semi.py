"""Mutants of `semi`: targets of samples without a label, and the pools' means of all classes."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

TESTS = ("tests/core/test_semi.py",)

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
    Mutant(" & ~Labels.of(labels).is_labelled\n", "\n"),
    Mutant("(weights @ means).to(target.dtype)", "(weights @ F.normalize(means, dim=1)).to(target.dtype)"),
    Mutant("(weights @ means).to(target.dtype)", "means[weights.argmax(-1)].to(target.dtype)"),
)
POOLS = (
    Mutant("(self.sums[:-1] / mass[:, None]).to(self.targets.dtype), is_held", "self.sums[:-1].to(self.targets.dtype), is_held"),
    Mutant("(self.mass if self.has_weights else self.tally)[:-1], 1.0)", "self.tally[:-1], 1.0)"),
    Mutant("return self.prototypes[:-1], self.seen[:-1]", "return self.prototypes[:-1], torch.ones_like(self.seen[:-1])"),
)

GROUPS = (
    Group("core/losses.py", TESTS, LOSS), Group("core/pools.py", TESTS, POOLS),
)
