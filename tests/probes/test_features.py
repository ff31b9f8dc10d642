"""Features against torchvision's transforms on PIL images and a plain loop over the encoder."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from supancl.core.encoders import EncoderSpec
from supancl.data.decode import decode
from supancl.data.splits import Split, full_split
from supancl.data.store.memory import ArrayImages, Batch, PackedImages, pad_images
from supancl.data.views.render import evaluation_view
from supancl.errors import BadInput
from supancl.probes import Features, embed, features, linear_probe
from supancl.probes.features import hold_out
from tests.helpers import mentions, noise

SIZE = 32
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def smooth(height: int, width: int, seed: int) -> Image.Image:
    """A picture with edges and slopes, not noise: what a photograph asks of a filter."""
    small = Image.fromarray(noise(6, 7, 3, seed=seed))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def by_torchvision(image: Image.Image) -> torch.Tensor:
    """As the protocol has it, as bytes."""
    cropped = v2.CenterCrop(SIZE)(v2.Resize(SIZE, v2.InterpolationMode.BICUBIC)(image))
    return torch.from_numpy(np.array(cropped)).permute(2, 0, 1)


def in_bytes(view: torch.Tensor) -> torch.Tensor:
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    return (view * std + mean) * 255


@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 48), (33, 40), (200, 150), (16, 16), (10, 27), (31, 32)])
def test_the_whole_view_is_that_of_torchvision_on_pil_images(height, width, tmp_path):
    image = smooth(height, width, seed=height + width)
    image.save(tmp_path / "x.png")
    pixels = decode(tmp_path / "x.png", 3, short_side=SIZE, resample="bicubic")
    found = in_bytes(evaluation_view(Batch(pixels[None]), SIZE, MEAN, STD, "whole"))[0]
    difference = (found - by_torchvision(image)).abs()  # of enlarged images Pillow's weights are fixed-point numbers
    assert difference.max() < (0.01 if min(height, width) >= SIZE else 1.01)
    assert difference.mean() < 0.01


def test_a_batch_of_differing_sizes_is_every_image_alone():
    images = [torch.from_numpy(np.array(smooth(h, w, h))).permute(2, 0, 1) for h, w in ((20, 31), (32, 40), (16, 16))]
    together = evaluation_view(pad_images(images), SIZE, MEAN, STD, "whole")
    alone = [evaluation_view(Batch(image[None]), SIZE, MEAN, STD, "whole") for image in images]
    assert torch.equal(together, torch.cat(alone))


def some_split(n: int = 7, channels: int = 3, side: int = 12) -> Split:
    pixels = torch.from_numpy(noise(n, channels, side, side, seed=3))
    return full_split(ArrayImages(pixels), torch.arange(n) % 3 - 1, [f"image {i}" for i in range(n)])


def small_encoder(size: int = 8):
    torch.manual_seed(0)
    return EncoderSpec("cnn", channels=3, size=size, width=8, mean=MEAN, std=STD).build()


@pytest.mark.parametrize("view", ["margin", "whole"])
def test_features_are_the_encoders_in_order_whatever_the_batches(view):
    split, encoder = some_split(), small_encoder().eval()
    found = embed(encoder, split, batch_size=3, view=view)
    assert torch.equal(found.labels, split.labels)
    for i in range(len(split)):
        alone = split.batch(torch.tensor([i]))
        seen = evaluation_view(alone, encoder.size, MEAN, STD, view)
        with torch.no_grad():
            assert torch.allclose(found.values[i], encoder(seen)[0], atol=1e-5)
    other = embed(encoder, split, view="whole" if view == "margin" else "margin")
    assert not torch.allclose(found.values, other.values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_features_and_labels_stay_on_the_gpu_where_asked_for():
    split, encoder = some_split(), small_encoder().eval().cuda()
    there, back = embed(encoder, split, "cuda", stay=True), embed(encoder, split, "cuda")
    assert (there.values.is_cuda, there.labels.is_cuda, back.values.is_cuda) == (True, True, False)
    assert torch.allclose(there.values.cpu(), back.values, atol=1e-5)
    assert embed(encoder, split.take(torch.empty(0, dtype=torch.long)), "cuda", stay=True).values.is_cuda


def test_a_panorama_beside_a_tall_image_is_read_in_smaller_batches(monkeypatch):
    shapes = [(8, 8)] * 6 + [(8, 80), (80, 8)] + [(8, 8)] * 4
    images = [torch.full((1, *shape), 10 * i, dtype=torch.uint8) for i, shape in enumerate(shapes)]
    store = PackedImages.from_images(images)
    split = full_split(store, torch.zeros(len(shapes), dtype=torch.long), [""] * len(shapes))
    encoder = EncoderSpec("cnn", channels=1, size=8, width=4, mean=(0.5,), std=(0.5,)).build()
    whole = embed(encoder, split).values
    largest, batch = [], type(store).batch
    monkeypatch.setattr(type(store), "batch", lambda self, rows: largest.append(batch(self, rows)) or largest[-1])
    monkeypatch.setattr(features, "MOST_PADDED_BYTES", 2000)
    torch.testing.assert_close(embed(encoder, split).values, whole)
    assert max(read.pixels.nbytes for read in largest) <= 2000
    assert sum(len(read.pixels) for read in largest) == len(shapes)


def test_layers_and_unit_length():
    split, encoder = some_split(), small_encoder()
    assert embed(encoder, split, layer="2").values.shape == (7, 2)  # the first rectified map
    unit, plain = embed(encoder, split, normalize=True).values, embed(encoder, split).values
    assert torch.allclose(unit, plain / plain.norm(dim=1, keepdim=True), atol=1e-6)
    assert encoder.training  # put back


BAD = {
    "rows": (Features(torch.ones(2, 2), torch.tensor([0, 1, 1])), "(2, 2)"),
    "not finite": (Features(torch.tensor([[1.0, 2.0], [torch.nan, 0.0]]), torch.tensor([0, 1])), "row 1"),
    "no label": (Features(torch.ones(2, 2), torch.tensor([-1, -1])), "no labelled image"),
    "one class": (Features(torch.ones(2, 2), torch.tensor([3, 3])), "class 3"),
    "width": (Features(torch.ones(2, 3), torch.tensor([0, 1])), "width 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_features_that_cannot_be_measured_are_refused_with_what_is_wrong(case: str) -> None:
    train, message = BAD[case]
    with pytest.raises(BadInput, match=mentions(message)):
        linear_probe(train, Features(torch.eye(2), torch.tensor([0, 1])))


def test_a_part_of_each_class_is_held_out_at_least_one_image_and_never_all() -> None:
    labels = torch.tensor([0] * 20 + [1] * 2 + [2])
    assert labels[hold_out(labels, 0.9)].bincount().tolist() == [18, 1]
    assert labels[hold_out(labels, 0.1)].bincount().tolist() == [2, 1]
    assert not torch.equal(hold_out(labels, 0.5), hold_out(labels, 0.5, seed=1))
