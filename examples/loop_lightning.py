"""SupSiam as a LightningModule: python examples/loop_lightning.py"""

import sys

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from supancl import MLP, Align, Branches, Queue
from supancl.probes import Features, knn_accuracy

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10


def augment(images):  # turn, scale and shift each image a little
    turns = (torch.eye(2, 3) + 0.1 * torch.randn(len(images), 2, 3)).to(images)
    return F.grid_sample(images, F.affine_grid(turns, images.shape, align_corners=False), align_corners=False)


class SupSiam(lightning.LightningModule):
    def __init__(self, encoder):  # of 64 features; the pool is saved with the module
        super().__init__()
        self.branches = Branches(encoder, MLP((64,), 64).build(64), MLP((16,), 64).build(64))
        self.pool, self.loss = Queue(size=1024, width=64, classes=10), Align(alpha=0.5)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        anchors, targets = self.branches(torch.stack([augment(images), augment(images)]))  # (2, B, 64) each: both views
        terms = self.loss(anchors, targets, labels, self.pool)
        self.log("loss", terms.total)
        return {"loss": terms.total, "targets": targets[1], "labels": labels}

    def on_train_batch_end(self, outputs, batch, batch_idx):  # after the step: a batch is never its own positive
        targets, labels = self.all_gather((outputs["targets"], outputs["labels"]))  # of all ranks
        self.pool.push(targets.view(-1, 64), labels.flatten())

    def on_train_epoch_end(self):
        loss, coverage = self.trainer.callback_metrics["loss"], self.pool.coverage()
        self.print(f"epoch {self.current_epoch + 1}  loss {loss:.3f}  coverage {coverage:.0%}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)


torch.manual_seed(0)
images, labels = torch.tensor(load_digits().images[:, None] / 16).float(), torch.tensor(load_digits().target)
train = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=64, shuffle=True, drop_last=True)
first = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
second = [nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
encoder = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten())  # any images -> features
trainer = lightning.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(SupSiam(encoder), train)
features = encoder.cpu().eval()(images).detach()
accuracy = knn_accuracy(Features(features[:1400], labels[:1400]), Features(features[1400:], labels[1400:]))
print(f"k-NN accuracy of 397 test images: {accuracy:.1f}%")
