"""Mutants of the branches, of batch norm per view, and of the heads."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

BRANCHES = (
    Mutant('if target == "momentum":', 'if target != "shared":'),
    Mutant("self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)", "self.target_encoder = encoder"),
    Mutant("self.target_encoder = copy.deepcopy(encoder).requires_grad_(False)", "self.target_encoder = copy.deepcopy(encoder)"),
    Mutant("self.target_projector = copy.deepcopy(projector).requires_grad_(False)", "self.target_projector = copy.deepcopy(projector)"),
    Mutant("self.target_projector = copy.deepcopy(projector).requires_grad_(False)", "self.target_projector = projector"),
    Mutant("predictions, targets = self._predict(projections), self._compute_targets(views, projections)", "predictions, targets = projections, self._compute_targets(views, projections)"),
    Mutant("self._compute_targets(views, projections)\n", "self._compute_targets(views, self._predict(projections))\n"),
    Mutant("predictions = torch.cat([predictions, self._predict(local_projections)])", "predictions = torch.cat([predictions, local_projections])"),
    Mutant("predictions = torch.cat([predictions, self._predict(local_projections)])", "predictions = torch.cat([self._predict(local_projections), predictions])"),
    Mutant("local_projections = self._forward_per_view(local, self.encoder, self.projector)", "local_projections = self._forward_per_view(local, self.target_encoder or self.encoder, self.projector)"),
    Mutant("return self._normalize(predictions), self._normalize(targets)", "return self._normalize(targets), self._normalize(predictions)"),
    Mutant("return self._normalize(predictions), self._normalize(targets)", "return self._normalize(predictions), targets"),
    Mutant("return self._normalize(predictions), self._normalize(targets)", "return predictions, self._normalize(targets)"),
    Mutant("return joined.view(len(views), -1, *joined.shape[1:])", "return joined.view(-1, len(views), *joined.shape[1:]).transpose(0, 1)"),
    Mutant("return torch.stack([forward(view) for view in views])", "joined = forward(views.flatten(0, 1))\n        return joined.view(len(views), -1, *joined.shape[1:])"),
    Mutant("return torch.stack([forward(view) for view in views])", "return torch.stack([forward(view) for view in reversed(views)])"),
    Mutant('if self.target == "shared":\n            return projections', 'if self.target == "shared":\n            return projections.detach()'),
    Mutant("return projections.detach()", "return projections"),
    Mutant("with torch.no_grad():\n            return self._forward", "if True:\n            return self._forward", equal="the copy's parameters and the views require no gradient, so none is recorded either way"),
    Mutant("self._forward_per_view(views, self.target_encoder, self.target_projector)", "self._forward_per_view(views, self.encoder, self.target_projector)"),
    Mutant("self._forward_per_view(views, self.target_encoder, self.target_projector)", "self._forward_per_view(views, self.target_encoder, self.projector)"),
    Mutant("if not self.normalize:", "if self.normalize:"),
    Mutant("F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)", "F.normalize(features, dim=-1)"),
    Mutant("torch.float32)), dim=-1)", "torch.float32)), dim=1)"),
    Mutant("if not all(type(norm) in PER_VIEW_NORMS", "if not any(type(norm) in PER_VIEW_NORMS"),
    Mutant("cast(PerViewBatchNorm, norm).views = 2", "cast(PerViewBatchNorm, norm).views = 1"),
    Mutant("        self.joined = True\n", ""),
    Mutant("online: list[Tensor] = [*self.encoder.parameters(), *self.projector.parameters()]", "online: list[Tensor] = [*self.projector.parameters(), *self.encoder.parameters()]"),
    Mutant("difference = torch._foreach_sub(online, targets)", "difference = torch._foreach_sub(targets, online)"),
    Mutant("(1.0 - momentum).to(targets[0].dtype)", "momentum.to(targets[0].dtype)"),
    Mutant("torch._foreach_lerp_(targets, online, 1.0 - momentum)", "torch._foreach_lerp_(targets, online, momentum)"),
    Mutant("torch._foreach_lerp_(targets, online, 1.0 - momentum)", "torch._foreach_lerp_(online, targets, momentum)"),
    Mutant("return [*self.target_encoder.parameters(), *self.target_projector.parameters()]", "return [*self.target_encoder.parameters()]"),
    Mutant("self.target_encoder.load_state_dict(self.encoder.state_dict())\n            self", "self.encoder.load_state_dict(self.target_encoder.state_dict())\n            self"),
    Mutant("            self.target_projector.load_state_dict(self.projector.state_dict())\n", ""),
)

NORMS = (
    Mutant("if self.views == 1 or not self.training:", "if True:"),
    Mutant("if self.views == 1 or not self.training:", "if self.views == 1:", equal="in eval mode every chunk is normalised by the same running statistics"),
    Mutant("features.chunk(self.views)]", "reversed(features.chunk(self.views))]"),
    Mutant("features.chunk(self.views)]", "features.chunk(2 * self.views)]"),
)

HEADS = (
    Mutant("normed = [f\"{index + 1}.running_mean\" in weights", "normed = [f\"{index}.running_mean\" in weights"),
    Mutant("tuple(widths[:-1]),", "tuple(widths[1:]),"),
    Mutant('"batch" if affine else "batch-no-affine",', '"batch",'),
    Mutant('"batch" if not linear[:-1] or normed[0] else "none",', '"batch" if not linear[:-1] or normed[-1] else "none",'),
    Mutant("if all(norm != bias for", "if any(norm != bias for"),
    Mutant('.shape[1]\n', '.shape[0]\n'),
    Mutant("hidden = width if hidden_width is None", "hidden = self.out if hidden_width is None"),
    Mutant('normed = self.norm == "batch"', 'normed = self.norm != "batch"'),
    Mutant('nn.Linear(width, hidden, bias=self.bias == "auto" and not normed)', 'nn.Linear(width, hidden, bias=self.bias == "auto")'),
    Mutant('nn.Linear(width, hidden, bias=self.bias == "auto" and not normed)', "nn.Linear(width, hidden, bias=not normed)"),
    Mutant("            layers.append(nn.ReLU(inplace=True))\n", ""),
    Mutant("            layers.append(nn.ReLU(inplace=True))\n", "            layers.append(nn.LeakyReLU(inplace=True))\n"),
    Mutant('nn.Linear(width, self.out, bias=self.bias == "auto" and not normed)', 'nn.Linear(width, self.out, bias=self.bias == "auto")'),
    Mutant('affine=self.last_norm == "batch"', "affine=True"),
    Mutant('normed = self.last_norm != "none"', 'normed = self.last_norm == "batch"'),
)

SPECS = (Mutant("momentum: Fraction = 0.996", "momentum: Fraction = 0.99"),)
SKIPPED = "not timm and not trains_with_local and not convolutional and not one_size"
GROUPS = (
    Group("core/specs.py", ("tests/core/test_branches.py", "-k", SKIPPED), SPECS),
    Group("core/branches.py", ("tests/core/test_branches.py", "-k", SKIPPED), BRANCHES),
    Group("distributed/norms.py", ("tests/core/test_branches.py", "-k", "one_batch or joined"), NORMS),
    Group("core/specs.py", ("tests/core/test_heads.py",), HEADS),
)
