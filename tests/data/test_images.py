"""A file becomes pixels: modes, depth, transparency, orientation, size, and files that are broken."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from PIL import Image

from supancl.data.decode import decode, upright_size
from tests.helpers import noise

HEIGHT, WIDTH = 6, 9


def saved(folder, image, name="image.png", **options):
    path = folder / name
    image.save(path, **options)
    return path


@pytest.mark.parametrize("name", ["image.png", "image.webp", "image.tiff"])
def test_transparency_is_laid_over_white(tmp_path, name):
    rgba = noise(HEIGHT, WIDTH, 4)
    rgba[0, :, 3], rgba[1, :, 3] = 0, 255
    options = {"lossless": True, "exact": True} if name.endswith("webp") else {}
    image = decode(saved(tmp_path, Image.fromarray(rgba), name, **options)).permute(1, 2, 0).numpy()
    share = rgba[..., 3:].astype(float) / 255
    expected = rgba[..., :3] * share + 255 * (1 - share)
    assert np.abs(image - expected).max() <= 1
    assert (image[0] == 255).all()
    assert np.array_equal(image[1], rgba[1, :, :3])


@pytest.mark.parametrize("how", ["one index", "alpha per index"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_palette_is_looked_up_and_its_transparent_entries_are_white(tmp_path, how, channels):
    colours = np.array([[255, 0, 0], [0, 200, 0], [0, 0, 90]], dtype=np.uint8)
    indices = noise(HEIGHT, WIDTH) % 3
    picture = Image.fromarray(indices, "P")
    picture.putpalette(colours.flatten().tolist())
    transparency = 1 if how == "one index" else bytes([255, 0, 255])
    path = saved(tmp_path, picture, transparency=transparency)
    expected = colours.copy()
    expected[1] = 255
    rgb = expected[indices]
    image = decode(path, channels)
    wanted = np.array(Image.fromarray(rgb).convert("L"))[None] if channels == 1 else rgb.transpose(2, 0, 1)
    assert np.array_equal(image.numpy(), wanted)


@pytest.mark.parametrize("name", ["image.png", "image.tiff"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, name, channels):
    deep = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH), dtype=np.uint16)
    deep[0, :3] = 0, 257, 65535
    image = decode(saved(tmp_path, Image.fromarray(deep), name), channels)
    expected = np.round(deep / 257).astype(np.uint8)
    assert np.array_equal(image.numpy(), np.stack([expected] * channels))
    assert expected.max() == 255


@pytest.mark.parametrize(("bits", "tags"), [(32, {339: 3}), (16, {339: 2}), (16, {262: 0}), (12, {})])
def test_pixels_whose_range_is_not_known_are_refused_not_shown_black(tmp_path, bits, tags):
    """Pillow neither inverts 16 bits, nor scales 12."""
    path = tmp_path / "image.tiff"
    path.write_bytes(tiff_of(bytes(HEIGHT * WIDTH * bits // 8), (HEIGHT, WIDTH), bits, tags))
    with pytest.raises(ValueError, match="8 or 16 bits"):
        decode(path)


def tiff_of(data: bytes, size: tuple[int, int], bits: int, more: dict[int, int]) -> bytes:
    height, width = size
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(data), **more}
    rows = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + rows + bytes(4)


# what a viewer must do to the stored pixels, for each value of the EXIF orientation
ORIENTATIONS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("kind", ["L", "RGB", "I;16"])
@pytest.mark.parametrize("how", ["image.png", "image.tiff", "image.tiff of tiff_lzw"])
def test_an_image_is_turned_upright_whole_however_it_is_stored(tmp_path, orientation, kind, how):
    """Pillow maps uncompressed grey files into memory, with the sides of the turned image."""
    exif = Image.Exif()
    exif[274] = orientation
    name, _, compression = how.partition(" of ")
    options = (
        {"exif": exif.tobytes()} if name == "image.png" else {"tiffinfo": exif, "compression": compression or None}
    )
    stored = noise(HEIGHT, WIDTH, 3) if kind == "RGB" else noise(HEIGHT, WIDTH)
    deep = stored.astype(np.uint16) * 257 if kind == "I;16" else stored
    path = saved(tmp_path, Image.fromarray(deep), name, **options)
    expected = ORIENTATIONS[orientation](stored.reshape(HEIGHT, WIDTH, -1))
    image = decode(path, 3 if kind == "RGB" else 1)
    assert np.array_equal(image.permute(1, 2, 0).numpy(), expected)
    assert upright_size(path) == expected.shape[:2]


@pytest.mark.parametrize(
    ("size", "short_side", "expected"),
    [
        ((40, 60), 20, (20, 30)), ((60, 40), 20, (30, 20)), ((40, 40), 20, (20, 20)), ((41, 67), 20, (20, 32)),
        ((10, 30), 20, (10, 30)), ((20, 90), 20, (20, 90)), ((40, 60), None, (40, 60)), ((2, 300), 1, (1, 150)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
def test_the_short_side_is_brought_down_and_never_up(tmp_path, size, short_side, expected, channels):
    image = decode(saved(tmp_path, Image.fromarray(noise(*size, 3))), channels, short_side)
    assert tuple(image.shape) == (channels, *expected)
