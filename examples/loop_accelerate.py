"""SupSiam in a loop of Hugging Face Accelerate: python (or accelerate launch) examples/loop_accelerate.py"""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from supancl import MLP, Align, Branches, Queue
from supancl.probes import Features, knn_accuracy

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10


def augment(images):  # turn, scale and shift each image a little
    turns = (torch.eye(2, 3) + 0.1 * torch.randn(len(images), 2, 3)).to(images)
    return F.grid_sample(images, F.affine_grid(turns, images.shape, align_corners=False), align_corners=False)


accelerator = Accelerator()
set_seed(0, device_specific=True)  # each process draws views of its own
images, labels = torch.tensor(load_digits().images[:, None] / 16).float(), torch.tensor(load_digits().target)
train = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=64, shuffle=True, drop_last=True)
first = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
second = [nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
encoder = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten())  # any images -> features
model = Branches(encoder, MLP((64,), 64).build(64), MLP((16,), 64).build(64))
pool, loss = Queue(size=1024, width=64, classes=10), Align(alpha=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)

model, optimizer, train = accelerator.prepare(model, optimizer, train)
pool.to(accelerator.device)
accelerator.register_for_checkpointing(pool)  # save_state then saves it too
for epoch in range(epochs):
    for x, y in train:
        anchors, targets = model(torch.stack([augment(x), augment(x)]))  # (2, B, 64) each: both views
        terms = loss(anchors, targets, y, pool)
        optimizer.zero_grad()
        accelerator.backward(terms.total)
        optimizer.step()
        if not accelerator.optimizer_step_was_skipped:  # after the step: a batch is never its own positive
            pool.push(*accelerator.gather((targets[1], y)))
    accelerator.print(f"epoch {epoch + 1}  loss {terms.total:.3f}  coverage {pool.coverage():.0%}")

features = encoder.cpu().eval()(images).detach()
accuracy = knn_accuracy(Features(features[:1400], labels[:1400]), Features(features[1400:], labels[1400:]))
accelerator.print(f"k-NN accuracy of 397 test images: {accuracy:.1f}%")
