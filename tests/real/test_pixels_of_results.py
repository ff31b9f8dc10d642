"""What RESULTS.md says of pixels: Pets, not square, are seen at 32 px as torchvision shows them, column by column."""

import io
import zipfile

import torch
from PIL import Image
from torchvision.transforms import v2

from supancl.data.decode import decode
from supancl.data.store.memory import Batch
from supancl.data.views.render import evaluation_view

SIZE = 32  # the input of the CIFAR encoders


def test_the_pets_of_the_results_are_torchvisions_to_the_pixel(shared, tmp_path):
    """Every fourth photograph of the test split; the crop that was half a pixel off would differ by several levels."""
    reference = v2.Compose([v2.Resize(SIZE, v2.InterpolationMode.BICUBIC), v2.CenterCrop(SIZE), v2.PILToTensor()])
    shapes = set()
    with zipfile.ZipFile(shared / "data" / "oxford_pets_s64.zip") as archive:
        for name in [name for name in archive.namelist() if name.startswith("test/")][::4]:
            path = tmp_path / "image.jpg"
            path.write_bytes(archive.read(name))
            pixels = decode(path, 3, SIZE, "bicubic")
            seen = evaluation_view(Batch(pixels[None]), SIZE, (0.0,) * 3, (1.0,) * 3, "whole")[0] * 255
            image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            shapes.add(image.size)
            assert torch.equal(seen.round().byte(), reference(image)), name
    assert sum(width != height for width, height in shapes) > 20
