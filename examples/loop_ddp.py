"""SupSiam with plain DistributedDataParallel: torchrun --nproc-per-node 2 examples/loop_ddp.py (or python, for one)."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from supancl import MLP, Align, Branches, Queue
from supancl.probes import Features, knn_accuracy

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
alone = {} if dist.is_torchelastic_launched() else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
dist.init_process_group("gloo", **alone)  # on GPUs: nccl, and models, pool and batches on this rank's device
rank, world_size = dist.get_rank(), dist.get_world_size()


def augment(images):  # turn, scale and shift each image a little
    turns = torch.eye(2, 3) + 0.1 * torch.randn(len(images), 2, 3)
    return F.grid_sample(images, F.affine_grid(turns, images.shape, align_corners=False), align_corners=False)


def gather(rows):  # the rows of all ranks, in the same order on every rank
    all_rows = [torch.empty_like(rows) for _ in range(world_size)]
    dist.all_gather(all_rows, rows)
    return torch.cat(all_rows)


torch.manual_seed(rank)  # each rank draws views of its own; DDP gives all of them rank 0's weights
images, labels = torch.tensor(load_digits().images[:, None] / 16).float(), torch.tensor(load_digits().target)
train = TensorDataset(images[:1400], labels[:1400])
sampler = DistributedSampler(train, drop_last=True)
loader = DataLoader(train, batch_size=64 // world_size, sampler=sampler, drop_last=True)
first = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
second = [nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
encoder = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten())  # any images -> features
model = DistributedDataParallel(Branches(encoder, MLP((64,), 64).build(64), MLP((16,), 64).build(64)))
pool, loss = Queue(size=1024, width=64, classes=10), Align(alpha=0.5)  # every rank has the whole pool
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        anchors, targets = model(torch.stack([augment(x), augment(x)]))  # (2, B, 64) each: both views
        terms = loss(anchors, targets, y, pool)
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        pool.push(gather(targets[1]), gather(y))  # after the step: a batch is never its own positive
    print(f"rank {rank}: epoch {epoch + 1}  loss {terms.total:.3f}  coverage {pool.coverage():.0%}", flush=True)
features = encoder.eval()(images).detach()
accuracy = knn_accuracy(Features(features[:1400], labels[:1400]), Features(features[1400:], labels[1400:]))
if rank == 0:
    print(f"k-NN accuracy of 397 test images: {accuracy:.1f}%")
dist.destroy_process_group()
