"""Mutants of the target pools."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

SPECS = (
    Mutant('if self.start == "random":', 'if self.start != "random":'),
    Mutant("queue = Queue(self.size, width, classes, unlabelled, pairs)", "queue = Queue(self.size, width, classes, pairs=pairs)"),
    Mutant("ranks if self.sharded else SINGLE_PROCESS", "ranks"),
    Mutant("return Prototypes(width, classes, self.rate, ", "return Prototypes(width, classes, 0.9, "),
)

MUTANTS = (
    # --- what all pools share
    Mutant("has_target = self.counts > 0", "has_target = self.counts > 1"),
    Mutant("(has_target if classes is None else has_target[list(classes)])", "has_target"),
    Mutant("ages = (self.clock - self.born[: len(valid)]).double() * valid", "ages = (self.clock - self.born[: len(valid)]).double()"),
    Mutant("return ages.sum() / valid.sum().clamp(min=1)", "return ages.mean()"),
    Mutant("return ages.sum() / valid.sum().clamp(min=1)", "return ages.sum() / valid.sum()"),
    Mutant('if not hasattr(self, "clock") or not hasattr(self, "born"):', 'if not hasattr(self, "clock") and not hasattr(self, "born"):'),
    # --- rings
    Mutant('torch.full(labels, EMPTY)', 'torch.full(labels, UNLABELLED)'),
    Mutant('"sums", torch.zeros(classes + 1, width, dtype=torch.float64)', '"sums", torch.zeros(classes + 1, width, dtype=torch.float32)'),
    Mutant("return self.tally[:-1].long()", "return self.tally[1:].long()"),
    Mutant("slot = torch.where(keep, slot, self.rings * self.size)", "slot = torch.where(keep, slot, 0)"),
    Mutant("self.clock += 1\n        self._move_sums", "self.clock += len(labels)\n        self._move_sums"),
    Mutant("        self.targets[slot] = targets\n", "        self.targets[slot] = self.targets[slot] + targets\n"),
    Mutant("self.born[slot] = self.clock\n", "self.born[slot] = self.clock - 1\n"),
    Mutant("change[: len(slot)].neg_()", "change[len(slot) :].neg_()"),
    Mutant("change[: len(slot)].neg_()", "change[: len(slot)].zero_()"),
    Mutant("torch.cat([-leaving, targets])", "torch.cat([torch.zeros_like(leaving), targets])"),
    Mutant("torch.cat([-leaving, targets])", "torch.cat([leaving, targets])"),
    Mutant("torch.where(self.tally[row] > 0, self.classes, row)", "torch.where(self.tally[row] >= 0, self.classes, row)"),
    Mutant("torch.where(self.tally[row] > 0, self.classes, row)", "torch.where(self.tally[row] > 1, self.classes, row)"),
    Mutant("mean = self.sums[row] / count.clamp(min=1)[:, None]", "mean = self.sums[row]"),
    Mutant("mean = self.sums[row] / count.clamp(min=1)[:, None]", "mean = self.sums[row] / count.clamp(min=2)[:, None]"),
    Mutant("mean = self.sums[row] / count.clamp(min=1)[:, None]", "mean = self.sums[row] / self.size"),
    Mutant("torch.where((count > 0)[:, None], mean.to(fallback.dtype), fallback)", "torch.where((count > 1)[:, None], mean.to(fallback.dtype), fallback)"),
    Mutant("torch.where((count > 0)[:, None], mean.to(fallback.dtype), fallback)", "mean.to(fallback.dtype).expand_as(fallback)"),
    Mutant("order = self._row_of(stored).argsort(stable=True)", "order = stored.argsort(stable=True)"),
    Mutant("first = count.cumsum(0) - count\n", "first = count.cumsum(0)\n"),
    Mutant("torch.rand(shape, device=row.device)", "torch.rand(shape[-2:], device=row.device)"),
    Mutant("row_range.select(torch.rand(shape, device=row.device), -2)", "torch.rand((*shape[:-2], len(row), samples), device=row.device)"),
    Mutant("offset = torch.minimum((uniform * count[row]).long()", "offset = torch.minimum((uniform * (count[row] - 1)).long()"),
    Mutant("offset = torch.minimum((uniform * count[row]).long()", "offset = torch.minimum((uniform * count.max()).long()"),
    Mutant("drawn.mean(-2)", "drawn[..., 0, :]"),
    Mutant("return Stored(self.targets[:-1], labels, labels != EMPTY)", "return Stored(self.targets[:-1], labels, labels >= 0)"),
    # --- one queue
    Mutant("F.normalize(torch.randn_like(self.targets[:-1]), dim=1)", "torch.randn_like(self.targets[:-1])"),
    Mutant("F.normalize(torch.randn_like(self.targets[:-1]), dim=1)", "F.normalize(torch.rand_like(self.targets[:-1]), dim=1)"),
    Mutant("self.labels[:-1] = UNLABELLED", "self.labels[:-1] = 0"),
    Mutant("if self.unlabelled else labels >= 0", "if not self.unlabelled else labels >= 0"),
    Mutant("keep.cumsum(0) - 1\n", "keep.cumsum(0)\n"),
    Mutant("slot = (self.pointers + rank) % self.size\n", "slot = rank % self.size\n"),
    Mutant("slot = (self.pointers + rank) % self.size\n", "slot = (self.pointers + rank).clamp(max=self.size - 1)\n"),
    Mutant("self.pointers.add_(total).remainder_(self.size)\n        return slot, _keep_newest(keep, total - rank", "self.pointers.add_(len(labels)).remainder_(self.size)\n        return slot, _keep_newest(keep, total - rank"),
    Mutant("_keep_newest(keep, total - rank, self.size)", "_keep_newest(keep, rank + 1, self.size)"),
    # --- a queue per class
    Mutant("ring, keep = labels.clamp(min=0), labels >= 0", "ring, keep = labels.clamp(min=0), labels >= -1"),
    Mutant("slot = ring * self.size + (self.pointers[ring] + rank) % self.size", "slot = ring * self.size + rank % self.size"),
    Mutant("slot = ring * self.size + (self.pointers[ring] + rank) % self.size", "slot = ring + (self.pointers[ring] + rank) % self.size"),
    Mutant("_keep_newest(keep, total[ring] - rank, self.size)", "_keep_newest(keep, rank + 1, self.size)"),
    Mutant("return keep if len(keep) <= size else keep & (from_end <= size)", "return keep"),
    Mutant("return keep if len(keep) <= size else keep & (from_end <= size)", "return keep & (from_end < size)"),
    Mutant("return keep if len(keep) <= size else keep & (from_end <= size)", "return keep & (from_end <= size)"),
    Mutant("torch.where(keep, ring, self.rings).argsort(stable=True)", "torch.where(keep, ring, self.rings).argsort(stable=True, descending=True)"),
    Mutant("first = total.cumsum(0) - total\n", "first = torch.zeros_like(total)\n"),
    # --- prototypes
    Mutant("self.rate, self.classes, self.ranks = rate,", "self.rate, self.classes, self.ranks = 0.9,"),
    Mutant("(labels[:, None] == labels).to(targets.dtype)\n", "torch.eye(len(labels)).to(targets.dtype)\n"),
    Mutant("torch.lerp(mean, self.prototypes[row], self.rate)", "torch.lerp(self.prototypes[row], mean, self.rate)"),
    Mutant("moved, mean)", "moved, (1 - self.rate) * mean)"),
    Mutant("self.seen[row][:, None], moved", "self.seen[row][:, None] & False, moved"),
    Mutant("        self.seen[-1].fill_(False)\n", ""),
    Mutant("self.born[row] = self.clock\n        self.seen", "self.seen"),
    Mutant("self.seen.index_fill_(0, row, True)", "self.seen.fill_(True)"),
    Mutant("torch.where(self.seen[row][:, None], self.prototypes[row].to(fallback.dtype), fallback)", "self.prototypes[row].to(fallback.dtype).expand_as(fallback)"),
    # --- prototypes of many ranks
    Mutant("is_here = (classes >= 0) & (classes % self.ranks.size == self.ranks.rank)", "is_here = classes % self.ranks.size == self.ranks.rank", equal="-1 // size is -1, and row -1 is the extra one"),
    Mutant("is_here, classes // self.ranks.size, self.classes_here", "is_here, classes, self.classes_here"),
    Mutant("shard = slice(self.ranks.rank, self.classes, self.ranks.size)", "shard = slice(0, self.local_classes)"),
    Mutant("for number in chosen if number % size == self.ranks.rank]", "for number in chosen]"),
    Mutant("all_rows[self.ranks.rank :: self.ranks.size] = local_rows", "all_rows[: len(local_rows)] = local_rows"),
    Mutant("all_rows = self.ranks.all_reduce(all_rows)\n", "pass\n"),
    # --- the check of labels
)

TESTS = (
    "tests/core/test_pools.py",
    "tests/test_released_code.py::test_a_random_queue_is_full_of_unit_vectors_that_hang_on_the_seed",
    "tests/test_released_code.py::test_random_targets_go_as_the_queue_fills",
    "tests/distributed/test_exact.py",
    "-k", "not traced and not million",
)

GROUPS = (
    Group("core/specs.py", TESTS, SPECS),
    Group(
        "core/pools.py",
        TESTS,
        MUTANTS,
    ),
)
