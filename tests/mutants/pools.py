"""Mutants of the target pools."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.mutants.mutant import Group, Mutant

SPECS = (
    Mutant('if self.start == "random":', 'if self.start != "random":'),
    Mutant("queue = Queue(self.size, width, classes, unlabelled=unlabelled)", "queue = Queue(self.size, width, classes)"),
    Mutant("if self.sharded and ranks.size > 1:", "if self.sharded:"),
    Mutant("return Prototypes(width, classes, self.rate)", "return Prototypes(width, classes)"),
)

MUTANTS = (
    # --- what all pools share
    Mutant("has_target = self.counts > 0", "has_target = self.counts > 1"),
    Mutant("(has_target if classes is None else has_target[self._class_indices(classes)])", "has_target"),
    Mutant("return list(classes)", "return list(range(len(classes)))"),
    Mutant("ages = (self.clock - self.born[: len(valid)]).double() * valid", "ages = (self.clock - self.born[: len(valid)]).double()"),
    Mutant("return ages.sum() / valid.sum().clamp(min=1)", "return ages.mean()"),
    Mutant("return ages.sum() / valid.sum().clamp(min=1)", "return ages.sum() / valid.sum()"),
    Mutant('if not hasattr(self, "clock") or not hasattr(self, "born"):', 'if not hasattr(self, "clock") and not hasattr(self, "born"):'),
    # --- rings
    Mutant('torch.full((slots + 1,), EMPTY)', 'torch.full((slots + 1,), UNLABELLED)'),
    Mutant('"sums", torch.zeros(classes + 1, width, dtype=torch.float64)', '"sums", torch.zeros(classes + 1, width, dtype=torch.float32)'),
    Mutant("return self.tally[:-1].long()", "return self.tally[1:].long()"),
    Mutant("targets = targets.detach().to(self.targets.dtype)\n        slot", "targets = F.normalize(targets.detach().to(self.targets.dtype), dim=1)\n        slot"),
    Mutant("slot = torch.where(stored, slot, self.rings * self.size)", "slot = torch.where(stored, slot, 0)"),
    Mutant("labels = torch.where(stored, labels, EMPTY)  #", "labels = torch.where(stored, labels, UNLABELLED)  #", equal="nobody reads the label of the extra slot: below 0 it enters no sum, and it is cut off where slots are read"),
    Mutant("self.clock += 1\n        self._update", "self.clock += len(labels)\n        self._update"),
    Mutant("self._update_sums(self.targets[slot], self.labels[slot], targets, labels)", "self._update_sums(self.targets[slot], labels, targets, labels)"),
    Mutant("self._update_sums(self.targets[slot], self.labels[slot], targets, labels)", "self._update_sums(targets, self.labels[slot], targets, labels)"),
    Mutant("        self.targets[slot] = targets\n", "        self.targets[slot] = self.targets[slot] + targets\n"),
    Mutant("        self.labels[slot] = labels\n", ""),
    Mutant("self.born[slot] = self.clock\n", "self.born[slot] = self.clock - 1\n"),
    Mutant("labels = torch.cat([removed_labels, added_labels])\n        has_label = labels >= 0", "labels = torch.cat([removed_labels, added_labels])\n        has_label = labels > 0"),
    Mutant("change[: len(removed)].neg_()", "change[len(removed) :].neg_()"),
    Mutant("change[: len(removed)].neg_()", "change[: len(removed)].zero_()"),
    Mutant("torch.cat([-removed, added])", "torch.cat([torch.zeros_like(removed), added])"),
    Mutant("torch.cat([-removed, added])", "torch.cat([removed, added])"),
    Mutant("torch.where(self.tally[row] > 0, self.classes, row)", "torch.where(self.tally[row] >= 0, self.classes, row)"),
    Mutant("torch.where(self.tally[row] > 0, self.classes, row)", "torch.where(self.tally[row] > 1, self.classes, row)"),
    Mutant("row = torch.where(labels >= 0, labels, self.classes)\n        count", "row = torch.where(labels >= 0, labels, 0)\n        count"),
    Mutant("mean = self.sums[row] / count.clamp(min=1)[:, None]", "mean = self.sums[row]"),
    Mutant("mean = self.sums[row] / count.clamp(min=1)[:, None]", "mean = self.sums[row] / count.clamp(min=2)[:, None]"),
    Mutant("mean = self.sums[row] / count.clamp(min=1)[:, None]", "mean = self.sums[row] / self.size"),
    Mutant("torch.where((count > 0)[:, None], mean.to(fallback.dtype), fallback)", "torch.where((count > 1)[:, None], mean.to(fallback.dtype), fallback)"),
    Mutant("torch.where((count > 0)[:, None], mean.to(fallback.dtype), fallback)", "mean.to(fallback.dtype).expand_as(fallback)"),
    Mutant("order = torch.where(label >= 0, label, self.classes).argsort(stable=True)", "order = label.argsort(stable=True)"),
    Mutant("first = tally.cumsum(0) - tally\n", "first = tally.cumsum(0)\n"),
    Mutant("torch.rand(*shape[:-1], row_range.total, samples, device=row.device)", "torch.rand(row_range.total, samples, device=row.device)"),
    Mutant("row_range.select(torch.rand(*shape[:-1], row_range.total, samples, device=row.device), -2)", "torch.rand(*shape[:-1], len(row), samples, device=row.device)"),
    Mutant("draws = (uniform * count[:, None]).long()", "draws = (uniform * (count[:, None] - 1)).long()"),
    Mutant("draws = (uniform * count[:, None]).long()", "draws = (uniform * tally.max()).long()"),
    Mutant("self.targets[drawn_slots].mean(-2)", "self.targets[drawn_slots][..., 0, :]"),
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
    Mutant("torch.where(keep, ring, rings).argsort(stable=True)", "torch.where(keep, ring, rings).argsort(stable=True, descending=True)"),
    Mutant("first = total.cumsum(0) - total\n", "first = torch.zeros_like(total)\n"),
    # --- prototypes
    Mutant("self.rate, self.classes = rate, classes", "self.rate, self.classes = 0.9, classes"),
    Mutant("same = (labels[:, None] == labels[None, :]).to(targets.dtype)\n", "same = torch.eye(len(labels)).to(targets.dtype)\n"),
    Mutant("same @ targets / same.sum(1, keepdim=True)", "same @ targets"),
    Mutant("torch.lerp(mean, self.prototypes[row], self.rate), mean", "torch.lerp(self.prototypes[row], mean, self.rate), mean"),
    Mutant("torch.lerp(mean, self.prototypes[row], self.rate), mean", "torch.lerp(mean, self.prototypes[row], self.rate), (1 - self.rate) * mean"),
    Mutant("self.seen[row][:, None], torch.lerp", "self.seen[row][:, None] & False, torch.lerp"),
    Mutant("        self.seen[-1].fill_(False)\n", ""),
    Mutant("self.born[row] = self.clock\n        self.seen", "self.seen"),
    Mutant("self.seen.index_fill_(0, row, True)", "self.seen.fill_(True)"),
    Mutant("torch.where(self.seen[row][:, None], self.prototypes[row].to(fallback.dtype), fallback)", "self.prototypes[row].to(fallback.dtype).expand_as(fallback)"),
    Mutant("return Stored(self.prototypes[:-1], labels, self.seen[:-1])\n\n\nclass Sharded", "return Stored(self.prototypes[:-1], labels, torch.ones_like(self.seen[:-1]))\n\n\nclass Sharded"),
    # --- prototypes of many ranks
    Mutant("is_local = (labels >= 0) & (labels % self.ranks.size == self.ranks.rank)", "is_local = labels % self.ranks.size == self.ranks.rank", equal="-1 // size is -1, and row -1 is the extra one"),
    Mutant("is_local, labels // self.ranks.size, self.local_classes", "is_local, labels, self.local_classes"),
    Mutant("torch.where(row[:, None] < self.local_classes, local_rows, 0.0)", "local_rows"),
    Mutant("rows = row_range.select(all_rows)", "rows = all_rows[: row_range.count]"),
    Mutant("all_rows[rank : self.classes : size] = shard", "all_rows[rank * len(shard) : rank * len(shard) + len(shard)] = shard"),
    Mutant("shard = slice(self.ranks.rank, self.classes, self.ranks.size)", "shard = slice(0, self.local_classes)"),
    Mutant("for label in classes if label % self.ranks.size == self.ranks.rank]", "for label in classes]"),
    Mutant("all_rows[self.ranks.rank :: self.ranks.size] = local_rows", "all_rows[: len(local_rows)] = local_rows"),
    Mutant("all_rows = self.ranks.all_reduce(all_rows)\n", "pass\n"),
    # --- the check of labels
    Mutant("int(labels.max()) >= classes:", "int(labels.max()) > classes:"),
)

TESTS = (
    "tests/core/test_pools.py",
    "tests/test_released_code.py::test_a_random_queue_is_full_of_unit_vectors_that_hang_on_the_seed",
    "tests/test_released_code.py::test_random_targets_go_as_the_queue_fills",
    "tests/distributed/test_parts.py::test_prototypes_of_all_ranks_meet_in_the_first_ones_memory_alone",
    "tests/distributed/test_parts.py::test_shards_together_know_what_one_pool_of_prototypes_knows",
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
