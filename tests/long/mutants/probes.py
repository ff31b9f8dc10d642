"""Mutants of the probes, and of rankings."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

FEATURES = (
    Mutant("has_label = self.labels >= 0", "has_label = self.labels > 0"),
    Mutant("chunks[i + 2 : i + 3]", "chunks[i + 1 : i + 2]"),
    Mutant("    encoder.eval()\n", ""),
    Mutant("        encoder.train(training)\n", "        encoder.train()\n"),
    Mutant("features = F.normalize(features, dim=1) if normalize else features", "features = features if normalize else F.normalize(features, dim=1)"),
    Mutant("            begin = done\n", ""),
    Mutant('"bf16" if half else "fp32"', '"bf16"'),
    Mutant("encoder.std, view)", 'encoder.std, "margin")'),
    Mutant(".clamp(min=1).minimum(sizes - 1)", ".minimum(sizes - 1)"),
    Mutant(".clamp(min=1).minimum(sizes - 1)", ".clamp(min=1)"),
    Mutant("return rank < count[row]", "return rank <= count[row]"),
    Mutant("manual_seed(seed))\n    return order[", "manual_seed(0))\n    return order["),
)

KNN = (
    Mutant("groups = columns // max(group_size, 1)", "groups = columns // max(group_size, 1) - 1", equal="fewer columns are in groups; the others are all looked at, so the k largest are still found"),
    Mutant("    member = torch.cat([member, remaining], 1)\n", ""),
    Mutant(".amax(1).topk(k, dim=1", ".amin(1).topk(k, dim=1"),
    Mutant("return values, member.gather(1, order)", "return values, order"),
    Mutant("torch.addmm(-0.5 * norms, queries, references.T)", "torch.addmm(-norms, queries, references.T)"),
    Mutant("        .sub_(0.5 * queries.square().sum(1, keepdim=True))\n", ""),
    Mutant("        .clamp_(max=0.0)\n", ""),
    Mutant("yield start + low, block", "yield low, block"),
    Mutant("similarity = matches.similarity[:, :k]", "similarity = matches.similarity", equal="scatter_add_ reads as many weights as there are indices"),
    Mutant("(similarity - similarity[:, :1]) / temperature", "similarity / temperature"),
    Mutant("(similarity - similarity[:, :1]) / temperature", "(similarity - similarity[:, :1]) * temperature"),
    Mutant("((similarity - similarity[:, :1]) / temperature).exp()", "torch.ones_like(similarity)"),
)

TRANSFER = (
    Mutant("fit, test = fit.labelled(), test.labelled()\n    if len(np", "if len(np"),
    Mutant("LogisticRegression(C=regularization", "LogisticRegression(C=1 / regularization"),
    Mutant("manual_seed(1_000_003 * seed + epoch)", "manual_seed(1_000_003 * seed)"),
    Mutant("layer.weight.copy_(0.01 * weight)", "layer.weight.copy_(weight)"),
    Mutant("lr=lr * batch_size / 256, momentum", "lr=lr, momentum"),
    Mutant("gamma=0.1)", "gamma=0.5)"),
    Mutant("        schedule.step()\n", ""),
    Mutant("momentum=momentum)", "momentum=0.0)"),
    Mutant("total += loss.detach() * len(labels)", "total += loss.detach()"),
    Mutant("milestones: Sequence[int] = (60, 80)", "milestones: Sequence[int] = (50, 80)"),
)

LOGISTIC = (
    Mutant("2 * targets.T.to(rows) - 1", "1 - 2 * targets.T.to(rows)"),
    Mutant("targets.numel() * math.log(2)", "targets.numel()"),
    Mutant("wrong = margins * -self.signs", "wrong = margins * self.signs"),
    Mutant("probability.mul_(self.signs).neg_()", "probability.mul_(self.signs)"),
    Mutant("(weighted * along).abs() - weighted.square()", "(weighted * along).abs()"),
    Mutant("mul_(probability * (1 - probability))", "mul_(probability)"),
    Mutant("return torch.cat([values, values.new_ones(len(values), 1)], 1)", "return torch.cat([values, values.new_zeros(len(values), 1)], 1)"),
    Mutant("self.loss_at_zero = len(rows) * math.log(classes)", "self.loss_at_zero = len(rows) * math.log2(classes)"),
    Mutant("logits.sub_(logits.gather(0, self.labels))", "logits.sub_(logits.amax(0, keepdim=True))"),
    Mutant("torch.log1p((true_class - 1 + others).double())", "torch.log1p((true_class + others).double())"),
    Mutant("loss = (top.double() + torch.log1p", "loss = (torch.log1p"),
    Mutant("-others / (true_class + others))", "others / (true_class + others))"),
    Mutant("probability /= true_class + others", "probability /= 1 + others"),
    Mutant("probability = probability * (1 - probability)\n", "probability = probability.square()\n"),
    Mutant("self.rows[start : start + chunk].square())", "self.rows[start : start + chunk].abs())"),
    Mutant(".scatter_add_(0, self.labels, -mean)", ""),
    Mutant("along.addcmul_(residual, mean, value=-1)", "along.addcmul_(residual, mean, value=1)"),
    Mutant("alpha=2 * self.weight).flatten()", "alpha=self.weight).flatten()"),
    Mutant("alpha=2 * (weight - factor * self.weight)", "alpha=2 * (weight - self.weight)"),
    Mutant("return result.neg_().view_as(gradient)", "return result.view_as(gradient)"),
    Mutant("length * ridge[1]\n", "ridge[1]\n"),
    Mutant("    tolerance *= min(1.0, max(problem.total_deviation, 10 * eps))\n", ""),
    Mutant("gradient = torch.add(loss_gradient, parameters, alpha=2 * weight)", "gradient = torch.add(loss_gradient, parameters, alpha=weight)"),
    Mutant("    penalized_loss = loss + weight * float(parameters.square().sum(dtype=torch.float64))\n    cut", "    penalized_loss = loss\n    cut"),
    Mutant("cut_off = ran_out and before_last", "cut_off = before_last"),
    Mutant("for weight in sorted(weights, reverse=True):", "for weight in sorted(weights):"),
    Mutant("EXTRAPOLATION_WEIGHTS = ((1.0,), (2.0, -1.0)", "EXTRAPOLATION_WEIGHTS = ((1.0,), (2.0, 1.0)", equal="a start affects only the speed, and a bad one is not taken"),
    Mutant("if penalized_loss < lowest:", "if penalized_loss > lowest or lowest == math.inf:", equal="the loss is strictly convex: the start affects only the speed"),
    Mutant("gradient = problem.gradient(residual).add_(parameters, alpha=2 * weight)", "gradient = problem.gradient(residual)"),
    Mutant("parameters = parameters + length * direction", "parameters = parameters + direction"),
    Mutant("(gradient / -size)", "(gradient / size)"),
    Mutant("return Solution(weight, parameters, margins, penalized_loss, relative, products, not converged)", "return Solution(weight, parameters, margins, penalized_loss, relative, products, converged)"),
)

LINEAR = (
    Mutant("10 ** (-6 + 11 * i / 44)", "10 ** (-6 + 11 * i / 45)"),
    Mutant("key=lambda weight: (-scores[weight], weight)", "key=lambda weight: (-scores[weight], -weight)"),
    Mutant("gram.addmm_(rows.T, rows)", "gram.addmm_(rows.T, rows, beta=0)", equal="the eigenvectors of any symmetric matrix are a rotation, and any rotation gives the same problem"),
)

FEWSHOT = (
    Mutant("order = order[labels[order] >= 0]", "order = order[labels[order] > 0]"),
    Mutant("usable = sizes > shots", "usable = sizes >= shots"),
    Mutant("if int(usable.sum()) < ways:", "if int(usable.sum()) <= ways:"),
    Mutant("offset = (sizes.cumsum(0) - sizes)[usable]", "offset = sizes.cumsum(0)[usable]"),
    Mutant("random = np.random.default_rng(seed)", "random = np.random.default_rng(0)"),
    Mutant(">= sizes[block][..., None], -1.0)", "> sizes[block][..., None], -1.0)"),
    Mutant("blocks.append(images.masked_fill(keys < 0, -1))", "blocks.append(images)"),
    Mutant("query = rows[..., shots:]", "query = rows[..., shots - 1 :]"),
    Mutant("resampled = query.gather(2, (key * count).long())", "resampled = query.gather(2, (key * (count - 1)).long())"),
    Mutant("np.random.default_rng([seed, 1])", "np.random.default_rng([0, 1])"),
    Mutant("return torch.where(count < queries, resampled, padded)", "return resampled"),
    Mutant("return 0.5 * (weights * scores_of).sum(-1) + strength *", "return (weights * scores_of).sum(-1) + strength *"),
    Mutant("+ strength * F.softplus(-sign * scores_of).sum(-1)", "+ strength * F.softplus(sign * scores_of).sum(-1)"),
    Mutant("slope = strength * sign * torch.sigmoid(-sign * scores)", "slope = sign * torch.sigmoid(-sign * scores)"),
    Mutant("curvature = strength * probability * (1 - probability)", "curvature = strength * probability"),
    Mutant("<= tolerance * slope.abs().amax(-1)", "<= 1e3 * slope.abs().amax(-1)"),
    Mutant(".repeat_interleave(shots, 1) - 1\n", ".repeat(1, shots) - 1\n"),
    Mutant("coefficients = dual_logistic(points @ points.mT + 1, sign, strength)", "coefficients = dual_logistic(points @ points.mT, sign, strength)"),
    Mutant("(query_points @ points.mT + 1) @", "(query_points @ points.mT) @"),
    Mutant("== truth) & is_query", "== truth)"),
    Mutant("is_correct.sum((1, 2)).double() / is_query.sum((1, 2))", "is_correct.sum((1, 2)).double() / is_query[0].numel()"),
    Mutant("sampled.support.numpy().tobytes() + sampled.query.numpy().tobytes()", "sampled.support.numpy().tobytes()"),
)

VARIANCE = (
    Mutant("return self.within / self.total if", "return self.total / self.within if"),
    Mutant("yield F.normalize(rows.double(), dim=1) if normalize else rows.double()", "yield rows.double() if normalize else F.normalize(rows.double(), dim=1)"),
    Mutant("torch.cat([(rows - classes.means[own]).square().sum(1) for", "torch.cat([(rows - classes.means[own]).square().mean(1) for"),
    Mutant("(self.sizes * self.centred.square().sum(1)).sum() / len(self.row)", "self.centred.square().sum(1).mean()"),
    Mutant("float(within + between)", "float(between)"),
    Mutant("float(within) if len(self.labels) < len(self.row) else math.nan", "float(within)"),
    Mutant("means = sums / sizes[:, None]", "means = sums / len(row)"),
    Mutant("means - sums.sum(0) / len(row))", "means - means.mean(0))"),
    Mutant("centred = (rows - mean for", "centred = (rows for"),
    Mutant("if count < width else centred)", "if count > width else centred)"),
    Mutant("directions = min(len(gram), count - 1)", "directions = len(gram)"),
    Mutant('UPLO="U"', 'UPLO="L"'),
    Mutant("gram[start : start + BLOCK, start:].addmm_", "gram[start : start + BLOCK, start:].zero_().addmm_"),
    Mutant(".clamp(min=0).sqrt()", ".clamp(min=0)"),
    Mutant("    if not bool(torch.isfinite(total)) or float(total) <= 1e-12:\n        return 0.0\n", ""),
    Mutant("return float((-(proportion * proportion.log()).sum()).exp())", "return float(-(proportion * proportion.log()).sum())"),
    Mutant("return float((-(proportion * proportion.log()).sum()).exp())", "return float(1 / proportion.square().sum())"),
    Mutant("index_add_(0, row, distances) / sizes", "index_add_(0, row, distances)"),
    Mutant("[~torch.eye(len(labels)", "[torch.ones_like(unit @ unit.T).bool() | torch.eye(len(labels)"),
    Mutant("(cosines + 1 / (len(labels) - 1)).abs()", "(cosines + 1 / len(labels)).abs()"),
    Mutant("effective_rank(labelled.values, normalize)", "effective_rank(labelled.values)"),
    Mutant("float(norms.std(correction=0) / norms.mean())", "float(norms.std(correction=0))"),
    Mutant("singular[nonzero].square()).sum())", "singular[nonzero]).sum())"),
)

SUITE = (
    Mutant("if data not in unranked and all(", "if all("),
    Mutant("higher = (table[None] > table[:, None]).sum(1)", "higher = (table[None] < table[:, None]).sum(1)"),
    Mutant("higher + (equal + 1) / 2", "higher + equal"),
    Mutant("higher + (equal + 1) / 2", "higher + 1"),
    Mutant("found if found.n > 1 else found._replace", "found._replace"),
)

ANSWERS = (
    Mutant("if not positives:", "if False:"),
    Mutant("last_of_equal[:-1] = ordered[1:] != ordered[:-1]", "last_of_equal[:-1] = True"),
    Mutant(".nanmean(0)", ".mean(0)"),
    Mutant("step = torch.searchsorted(steps, -scores)", "step = torch.searchsorted(steps, -scores, right=True)"),
    Mutant("/ reached.clamp(min=1)).sum(0)", "/ reached.amax(0).clamp(min=1)).sum(0)"),
)

MONITOR = "tests/training/test_monitor_and_evaluate.py"
RIDGE = (f"{MONITOR}::test_the_live_classifier_is_scikit_learns_at_that_ridge", f"{MONITOR}::test_without_two_classes_or_a_labelled_image_there_is_no_classifier")
RANK = tuple(f"tests/training/test_monitor.py::test_effective_rank_{rest}" for rest in ("is_that_of_the_singular_values",))
GROUPS = (
    Group("probes/features.py", ("tests/probes/test_features.py", "tests/probes/test_transfer.py", "tests/probes/test_linear.py", "tests/probes/test_knn.py", "-k", "not plain_loop and not resized"), FEATURES),
    Group("probes/knn.py", ("tests/probes/test_knn.py",), KNN),
    Group("probes/sgd.py", ("tests/probes/test_transfer.py", "tests/probes/test_linear.py"), TRANSFER),
    Group("probes/logistic.py", ("tests/probes/test_logistic.py", "tests/probes/test_several_labels.py", "tests/probes/test_linear_optimum.py", "-k", "not float32 or digits"), LOGISTIC),
    Group("probes/linear.py", ("tests/probes/test_linear.py", "tests/probes/test_transfer.py", *RIDGE, "tests/probes/test_linear_optimum.py", "-k", "not sgd"), LINEAR),
    Group("probes/fewshot.py", ("tests/probes/test_fewshot.py",), FEWSHOT),
    Group("probes/variance.py", ("tests/probes/test_collapse.py", *RANK), VARIANCE),
    Group("evaluation/suite.py", ("tests/evaluation/test_ranking.py",), SUITE),
    Group("probes/answers.py", ("tests/probes/test_precision.py",), ANSWERS),
)
