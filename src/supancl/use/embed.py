"""`embed`: the features of whatever images there are, as an object or as a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from PIL import Image
from typing_extensions import Unpack

from supancl.config import FLAG, checked
from supancl.data.from_python import Images, is_image_file, label_numbers, source_from_images, split_labels
from supancl.data.opening import check_source, open_source
from supancl.data.splits import Data, DataSpec, Source, Split, full_split
from supancl.data.store.memory import ArrayImages
from supancl.data.views.evaluation import View, evaluation_short_side
from supancl.errors import BadInput
from supancl.files import check_feature_file
from supancl.reporter import current_reporter, say
from supancl.use.evaluate import EncoderArgument, EncoderOptions, check_above, open_encoders

if TYPE_CHECKING:
    from supancl.core.encoders import Encoder
    from supancl.probes.features import Features


def embed(
    encoder: EncoderArgument,
    data: Annotated[str | Path | Split | Source | Image.Image | Images, FLAG],
    *,
    out: str | Path | None = None,
    view: View = "margin",
    **options: Unpack[EncoderOptions],
) -> Features:
    """Compute the features of images; write them to a file if one is named.

    Parameters
    ----------
    encoder
        a run folder, an encoder.safetensors, timm:NAME, NAME@FILE, or a checkpoint of another library; in Python also
        a run or an encoder
    data
        any source, such as a folder; in Python also an array (N, H, W[, C]) or a tensor (N, C, H, W) of uint8, a list
        of Pillow images or paths, (images, labels), or a split of `open_data`
    out
        the .npz, .csv or .parquet to write
    view
        margin: centre 7/8 of the short side, bilinear; whole: all of it, bicubic, as for transfer

    Returns
    -------
    Features
        `.values` (N, width), `.labels` (-1 where there is none or several) and `.paths`; converts to an array

    Examples
    --------
    $ supancl embed runs/photos --data photos --out features.npz
    $ supancl embed timm:resnet18 --data photos --out features.csv

    >>> from supancl import EncoderSpec
    >>> encoder = EncoderSpec("cnn", size=8).build()
    >>> np.asarray(embed(encoder, np.zeros((5, 40, 40, 3), np.uint8))).shape
    (5, 128)
    """
    import torch

    from supancl.evaluation.embedding import embed_to_file
    from supancl.probes import features as probes

    checked(view, View, "view")
    if isinstance(data, (str, Path)) and not is_image_file(data) and "@" not in str(data):
        check_source(str(data))
    if out is not None:
        check_feature_file(Path(out))
        (evaluated,) = open_encoders(encoder, options, saves_results=False)
        written = embed_to_file(evaluated, str(data), Path(out), view)
        about = written.about
        sizes = ", ".join(f"{name} {count} x {about['width']}" for name, count in about["splits"].items())
        held_out = f"; the run held {about['train_held_out']} of train out" if about["train_held_out"] else ""
        say(f"{out}: {sizes}{held_out}")
        return written
    check_above(options.get("batch_size", 256), 0, "batch_size")
    (evaluated,) = open_encoders(encoder, {"no_cache": True, **options}, saves_results=False)
    module, device = evaluated.encoder, evaluated.options.device
    how = (
        device,
        options.get("batch_size", 256),
        options.get("layer", "pooled"),
        options.get("normalize", False),
        view,
    )
    splits = list(find_splits(module, data, view))
    found = [probes.embed(module, split, *how, current_reporter().on_progress) for split in splits]
    values, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    paths = [name for split in splits for name in split.names_at(torch.arange(len(split)))]
    return probes.Features(values, labels, paths=paths)


def find_splits(encoder: Encoder, images: Any, view: View) -> Iterator[Split]:
    """The images as splits of a store, decoded no larger than the view needs."""
    import torch

    if isinstance(images, Split):
        yield images
        return
    if isinstance(images, Data):
        raise BadInput("data have several splits; embed data.train or data.held_out")
    short_side = evaluation_short_side(encoder.size, view)
    resample: Any = "bicubic" if view == "whole" else "bilinear"
    if isinstance(images, (str, Path)) and not is_image_file(images):
        spec = DataSpec(source=str(images), short_side=short_side, resample=resample)
        images = open_source(spec, encoder.spec.channels)
    if isinstance(images, Source):
        yield from images.splits.values()
        return
    if isinstance(images, np.ndarray) and images.ndim == 2 and encoder.spec.name == "linear":
        store = ArrayImages(torch.from_numpy(np.ascontiguousarray(images, np.float32)))
        yield full_split(store, torch.full((len(store),), -1), [f"images[{i}]" for i in range(len(store))])
        return
    spec, channels = DataSpec(short_side=short_side, resample=resample), encoder.spec.channels
    one_image = isinstance(images, (str, Path, Image.Image))
    images, labels = ([images], None) if one_image else split_labels(images, spec, channels)
    split = source_from_images(images, None, spec, channels).splits["train"]
    yield split if labels is None else replace(split, labels=label_numbers(labels, len(split)))
