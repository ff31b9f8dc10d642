"""Mutants of the losses."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

MUTANTS = (
    # --- the global batch and the traits
    Mutant("return cls(targets, labels, RowRange(0, len(labels), len(labels)))", "return cls(targets, labels, RowRange(0, 1, 1))"),
    Mutant("self.row_range.select(torch.eye(", "(torch.eye("),
    Mutant("torch.eye(len(self.labels), dtype=torch.bool", "torch.zeros(len(self.labels), len(self.labels), dtype=torch.bool"),
    Mutant("return len(labels) / len(batch_labels)", "return 1.0"),
    Mutant("normalizes: ClassVar[bool] = True", "normalizes: ClassVar[bool] = False"),
    # --- Align
    Mutant("return self.alpha < 1.0", "return self.alpha <= 1.0"),
    Mutant("return self.alpha < 1.0", "return self.alpha > 0.0"),
    Mutant("return self.supervised and pool is None", "return self.supervised"),
    Mutant("return self.supervised and pool is None", "return pool is None"),
    Mutant("torch.cat([anchors[:2], anchors[2:].repeat_interleave(2, dim=0)])", "torch.cat([anchors[:2], anchors[2:].repeat(2, 1, 1)])"),
    Mutant("if len(anchors) > 2:", "if len(anchors) > 3:"),
    Mutant("cross_view = _cross_view(targets, anchors)\n", "cross_view = targets.to(anchors.dtype)\n"),
    Mutant("if alpha is None and not self.supervised and pool is None:", "if not self.supervised and pool is None:"),
    Mutant("return Terms(ssl.mean(), ssl.mean().detach(), ssl.mean().detach())", "return Terms(ssl.sum(), ssl.mean().detach(), ssl.mean().detach())"),
    Mutant("return Terms(ssl.mean(), ssl.mean().detach(), ssl.mean().detach())", "return Terms(ssl.mean(), ssl.mean(), ssl.mean().detach())"),
    Mutant("weight = self.alpha if alpha is None", "weight = 1 - self.alpha if alpha is None"),
    Mutant("else alpha.to(anchors.dtype)", "else alpha.mean().to(anchors.dtype)"),
    Mutant("total = weight * ssl + (1 - weight) * sup", "total = weight * ssl + sup"),
    Mutant("total = weight * ssl + (1 - weight) * sup", "total = weight * sup + (1 - weight) * ssl"),
    Mutant("total = weight * ssl + (1 - weight) * sup", "total = 0.5 * ssl + 0.5 * sup"),
    Mutant("return Terms(total.mean(), ssl.mean().detach(), sup.mean().detach())", "return Terms(total.mean(), sup.mean().detach(), ssl.mean().detach())"),
    Mutant("return Terms(total.mean(), ssl.mean().detach(), sup.mean().detach())", "return Terms(total.mean(), ssl.mean().detach(), sup.mean())"),
    Mutant("return Terms(total.mean(), ssl.mean().detach(), sup.mean().detach())", "return Terms(total[:2].mean(), ssl.mean().detach(), sup.mean().detach())"),
    Mutant("(anchors - targets).square().sum(-1)", "(anchors - targets).square().mean(-1)"),
    Mutant("(anchors - targets).square().sum(-1)", "(anchors - targets).abs().sum(-1)"),
    Mutant("return -(anchors * targets).sum(-1)", "return (anchors * targets).sum(-1)"),
    Mutant("return -(anchors * targets).sum(-1)", "return 1 - (anchors * targets).sum(-1)"),
    Mutant("return -(anchors * targets).sum(-1)", "return -F.cosine_similarity(anchors, targets, dim=-1)"),
    Mutant("pool.class_mean(labels, cross_view, self.samples, row_range)", "pool.class_mean(labels, cross_view, None, row_range)"),
    Mutant("pool.class_mean(labels, cross_view, self.samples, row_range)", "pool.class_mean(labels, cross_view, self.samples)"),
    Mutant("pool.class_mean(labels, cross_view, self.samples, row_range)", "pool.class_mean(labels, cross_view.flip(0), self.samples, row_range)"),
    Mutant("pool.class_mean(labels, cross_view, self.samples, row_range)", "F.normalize(pool.class_mean(labels, cross_view, self.samples, row_range), dim=-1)"),
    Mutant("candidates = cross_view if global_batch is None else _cross_view(global_batch.targets, cross_view)", "candidates = cross_view"),
    # --- Contrast
    Mutant('return self.against.endswith("pool")', 'return self.against == "pool"'),
    Mutant('return self.positives == "own-class"', 'return self.positives == "own-view"'),
    Mutant('return self.against != "pool"', "return True"),
    Mutant("with torch.autocast(anchors.device.type, enabled=False):", "with torch.autocast(anchors.device.type, enabled=True):"),
    Mutant('if global_batch is None or self.against == "pool":', "if True:"),
    Mutant('if global_batch is None or self.against == "pool":', "if global_batch is None:"),
    Mutant("return Terms(total, total.detach(), total.detach())", "return Terms(total.detach(), total.detach(), total.detach())"),
    Mutant("dtype = torch.promote_types(anchors.dtype, torch.float32)\n            anchors, global", "dtype = anchors.dtype\n            anchors, global"),
    Mutant("positive = torch.cat([positive, pool_positive], dim=-1)", "positive = torch.cat([positive, torch.zeros_like(pool_positive)], dim=-1)"),
    Mutant("log_probability = F.log_softmax(logits, dim=-1)", "log_probability = logits - logits[..., :1]"),
    Mutant("log_probability = F.log_softmax(logits, dim=-1)", "log_probability = F.log_softmax(logits, dim=1)"),
    Mutant("torch.where(positive > 0, log_probability, torch.zeros_like(log_probability))", "positive * log_probability"),
    Mutant("total = -(log_likelihood / positive.sum(-1)).mean()", "total = (log_likelihood / positive.sum(-1)).mean()"),
    Mutant("total = -(log_likelihood / positive.sum(-1)).mean()", "total = -log_likelihood.mean()"),
    Mutant("total = -(log_likelihood / positive.sum(-1)).mean()", "total = -log_likelihood.sum() / positive.sum()"),
    Mutant("        same = self_mask\n        if self.supervised:", "        same = self_mask\n        if True:"),
    Mutant("other_view = anchors @ targets.flip(0).mT / self.temperature", "other_view = anchors @ targets.mT / self.temperature"),
    Mutant("other_view = anchors @ targets.flip(0).mT / self.temperature", "other_view = anchors @ targets.flip(0).mT * self.temperature"),
    Mutant("other_view = anchors @ targets.flip(0).mT / self.temperature", "other_view = anchors @ targets.flip(0).mT"),
    Mutant("other_view.diagonal(dim1=1, dim2=2).unsqueeze(-1)", "other_view.diagonal(dim1=1, dim2=2).flip(-1).unsqueeze(-1)"),
    Mutant("(anchors @ targets.mT / self.temperature).masked_fill(self_mask, -torch.inf)", "(anchors @ targets.mT / self.temperature)"),
    Mutant("(anchors @ targets.mT / self.temperature).masked_fill(self_mask, -torch.inf)", "(anchors @ targets.mT).masked_fill(self_mask, -torch.inf)"),
    Mutant("(anchors @ targets.mT / self.temperature).masked_fill(self_mask, -torch.inf)", "(anchors @ targets.mT / self.temperature).masked_fill(same, -torch.inf)"),
    Mutant("positive = torch.cat([same, same.masked_fill(self_mask, 0)], dim=-1)", "positive = torch.cat([same, torch.zeros_like(same)], dim=-1)"),
    Mutant("positive = torch.cat([same, same.masked_fill(self_mask, 0)], dim=-1)", "positive = torch.cat([same.masked_fill(self_mask, 0)] * 2, dim=-1)"),
    Mutant("stored.targets.to(anchors.dtype).mT / self.temperature", "stored.targets.to(anchors.dtype).mT"),
    Mutant("        logits = logits.masked_fill(~stored.valid, -torch.inf)\n", ""),
    Mutant("logits = logits.masked_fill(~stored.valid, -torch.inf)", "logits = logits.masked_fill(~stored.valid, 0.0)"),
    # --- CrossEntropy
    Mutant("ignore_index=-1", "ignore_index=-100"),
    Mutant("label_smoothing=self.smoothing", "label_smoothing=0.0"),
    Mutant("labels.repeat(views), ignore", "labels.repeat_interleave(len(anchors)), ignore"),
    Mutant("(views * read.is_labelled.sum()).clamp(min=1)", "(views * read.is_labelled.sum())"),
    Mutant("(views * read.is_labelled.sum()).clamp(min=1)", "(views * len(labels))"),
    Mutant("(views * read.is_labelled.sum()).clamp(min=1)", "(2 * read.is_labelled.sum()).clamp(min=1)"),
    Mutant("return Terms(total, torch.zeros_like(total).detach(), total.detach())", "return Terms(total, total.detach(), torch.zeros_like(total).detach())"),
    Mutant("return Labels.of(labels).is_labelled.sum() / Labels.of(batch_labels).is_labelled.sum().clamp(min=1)", "return len(labels) / len(batch_labels)"),
    Mutant("return Labels.of(labels).is_labelled.sum() / Labels.of(batch_labels).is_labelled.sum().clamp(min=1)", "return Labels.of(labels).is_labelled.sum() / Labels.of(batch_labels).is_labelled.sum()"),
    # --- helpers
    Mutant("flipped.repeat(len(anchors) // 2, 1, 1)", "flipped.repeat_interleave(len(anchors) // 2, 0)"),
    Mutant("flipped = targets.flip(0).to(anchors.dtype)", "flipped = targets.to(anchors.dtype)"),
)

GROUPS = (
    Group(
        "core/losses.py",
        (
            "tests/core/test_losses.py",
            "tests/distributed/test_parts.py::test_a_share_without_any_label_counts_nothing",
        ),
        MUTANTS,
    ),
)
