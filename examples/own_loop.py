"""SupSiam's loss, pool and heads in your own training loop."""

import torch
import torch.nn.functional as F

from supancl import MLP, Align, Queue

encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32))  # any images -> features
projector, predictor = MLP((64,), 64).build(32), MLP((16,), 64).build(64)
pool, loss = Queue(size=256, width=64, classes=10), Align(alpha=0.5)
parameters = [*encoder.parameters(), *projector.parameters(), *predictor.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
for _ in range(20):
    images, labels = torch.randn(32, 64), torch.randint(-1, 10, (32,))  # -1: no label
    views = [images + 0.1 * torch.randn_like(images) for _ in range(2)]
    z = torch.stack([projector(encoder(view)) for view in views])
    p = torch.stack([predictor(projected) for projected in z])
    anchors, targets = F.normalize(p, dim=-1), F.normalize(z.detach(), dim=-1)
    terms = loss(anchors, targets, labels, pool)  # terms.total, terms.ssl, terms.sup
    optimizer.zero_grad()
    terms.total.backward()
    optimizer.step()
    pool.push(targets[1], labels)  # after the loss: a batch is never its own positive
print(f"ssl {terms.ssl:.3f}  sup {terms.sup:.3f}  coverage {pool.coverage():.0%}")
