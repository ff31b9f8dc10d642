"""Mutants of the order of images."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

MUTANTS = (
    Mutant("manual_seed(derive_seed(seed, epoch))\n    return torch.randperm(images", "manual_seed(seed + epoch)\n    return torch.randperm(images"),
    Mutant("manual_seed(derive_seed(seed, epoch))\n    return torch.randperm(images", "manual_seed(derive_seed(seed))\n    return torch.randperm(images"),
    Mutant("manual_seed(derive_seed(seed, epoch))\n    return torch.randperm(images", "manual_seed(derive_seed(0, epoch))\n    return torch.randperm(images"),
    Mutant("return torch.randperm(images, generator=generator)", "return torch.randint(images, (images,), generator=generator)"),
    Mutant("manual_seed(derive_seed(seed, epoch))\n    members", "manual_seed(derive_seed(seed, 0))\n    members"),
    Mutant("members, unlabelled = (labels >= 0).nonzero()[:, 0]", "members, unlabelled = (labels > 0).nonzero()[:, 0]"),
    Mutant("(labels < 0).nonzero()[:, 0]\n", "(labels < 0).nonzero()[:0, 0]\n"),
    Mutant("    if not len(classes):\n        return torch.randperm(len(labels), generator=generator)\n", ""),
    Mutant("slots = torch.full_like(count, len(members) // len(classes))", "slots = torch.full_like(count, len(labels) // len(classes))"),
    Mutant("slots = torch.full_like(count, len(members) // len(classes))", "slots = count.clone()"),
    Mutant("[: len(members) % len(classes)]] += 1", "[: len(members) % len(classes)]] += 0"),
    Mutant("slots[torch.randperm(len(classes), generator=generator)[", "slots[torch.arange(len(classes))["),
    Mutant("rounds = (slots + count - 1) // count", "rounds = slots // count"),
    Mutant("rounds = (slots + count - 1) // count", "rounds = slots // count + 1"),
    Mutant("+ which_round)[shuffle]", ")[shuffle]"),
    Mutant("shuffle = torch.randperm(len(repeated), generator=generator)", "shuffle = torch.arange(len(repeated))"),
    Mutant("(int(rounds.max()) + 1) + which_round", "int(rounds.max()) + which_round", equal="rounds count from 0, so the largest one is still below the factor"),
    Mutant("rank_in_class < slots[", "rank_in_class <= slots["),
    Mutant(", unlabelled])\n    return selected[torch.randperm(len(selected), generator=generator)]", ", unlabelled])\n    return selected"),
    # --- the steps of a run
    Mutant("steps_per_epoch = self.images // batch_size\n        self.cached_orders", "steps_per_epoch = -(-self.images // batch_size)\n        self.cached_orders"),
    Mutant("if self.balanced:\n", "if not self.balanced:\n"),
    Mutant("return epoch_order(len(self.members), self.seed, number)", "return epoch_order(len(self.members), 0, number)"),
    Mutant("return balanced_order(self.labels, self.seed, number)", "return balanced_order(self.labels, self.seed, 0)"),
    Mutant("{**dict(list(cached.items())[-1:]), epoch: order[: self.images]}", "{epoch: order[: self.images]}"),
    Mutant("self._pass(epoch * passes + number)", "self._pass(number)"),
    Mutant("if takes_all else (labels.cpu() >= 0)", "if unlabelled else (labels.cpu() > 0)"),
    Mutant("return self.epoch(epoch)[step_in_epoch *", "return self.epoch(0)[step_in_epoch *"),
    Mutant("self.epoch(epoch)[step_in_epoch * self.batch_size : (step_in_epoch + 1) * self.batch_size]", "self.epoch(epoch)[step_in_epoch :: self.steps_per_epoch]"),
    Mutant("value = (value * 1_000_003 + number + 1) % 2**63", "value = (value + number + 1) % 2**63"),
    Mutant("value = (value * 1_000_003 + number + 1) % 2**63", "value = (value * 1_000_003 + number) % 2**63"),
    # --- windows of shards
    Mutant("starts = counts.cumsum(0) - counts\n    windows", "starts = counts.cumsum(0)\n    windows"),
    Mutant("torch.randperm(len(counts), generator=generator(0)).split(window)", "torch.arange(len(counts)).split(window)"),
    Mutant("generator=generator(0)).split(window), start=1)", "generator=generator(0)).split(window), start=0)"),
    Mutant(".split(window), start=1)", ".split(1), start=1)"),
    Mutant("positions = starts[shards].repeat_interleave(sizes) + within", "positions = starts[shards].repeat_interleave(sizes)"),
    Mutant("windows.append(positions[torch.randperm(len(positions), generator=generator(number))])", "windows.append(positions)"),
    Mutant("manual_seed(derive_seed(seed, epoch, number))", "manual_seed(derive_seed(seed, number))"),
    Mutant("manual_seed(derive_seed(seed, epoch, number))", "manual_seed(derive_seed(0, epoch, number))"),
)

GROUPS = (
    Group(
        "data/order.py",
        (
            "tests/data/test_order.py",
            "tests/data/test_stream.py::test_every_image_comes_once_in_the_order_of_the_definition",
        ),
        MUTANTS,
    ),
)
