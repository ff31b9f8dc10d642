"""`supancl.embed`: the features of whatever images there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from supancl.api.progress import progress_reporter
from supancl.config import checked
from supancl.core.encoders import PROJECTOR, Encoder
from supancl.data.from_python import Images, is_image_file, label_numbers, source_from_images, split_labels
from supancl.data.opening import open_source
from supancl.data.splits import Data, DataSpec, Source, Split, full_split
from supancl.data.store.memory import ArrayImages
from supancl.data.views.evaluation import View, evaluation_short_side
from supancl.errors import BadInput, explained_in_python
from supancl.probes import features as probes
from supancl.probes.features import Features
from supancl.reporter import ProgressFunction, report_to
from supancl.training.preflight import pick_device
from supancl.training.run import Run
from supancl.weights.encoder_file import load_projector
from supancl.weights.importing import open_encoder

ImagesArgument = Split | Source | str | Path | Image.Image | Images


@explained_in_python
def embed(
    encoder: Encoder | Run | str | Path,
    images: ImagesArgument,
    device: torch.device | str | None = None,
    batch_size: int = 256,
    layer: str = "pooled",
    normalize: bool = False,
    view: View = "margin",
    **options: Any,
) -> Features:
    """The features of images: `.values` (N, width), and `.labels`, -1 where there is none or several.

    `encoder` is a run, an encoder, or what `open_encoder` takes: a run folder, an encoder.safetensors, timm:NAME.
    `images` are an array (N, H, W[, C]) or a tensor (N, C, H, W) of uint8, a list of Pillow images or paths, a data set
    of torch, (images, labels) with integers as labels, a source as for `--data` (a folder: all of its splits, train
    first), or a split of `open_data`.

    `view` is `margin`, the centre 7/8 of the short side, bilinear, as in linear evaluation; or `whole`, all of the
    short side, bicubic, as in the transfer protocol (App. E). `layer` is one of the encoder's layers, or `projector`.
    `device` is the encoder's unless given. Further options are those of `supancl.probes.embed`.

    >>> from supancl import EncoderSpec
    >>> encoder = EncoderSpec("cnn", size=8).build()
    >>> embed(encoder, np.zeros((5, 40, 40, 3), np.uint8)).values.shape
    torch.Size([5, 128])
    >>> embed(encoder, "digits").labels[:4]
    tensor([0, 1, 2, 3])
    """
    module = find_encoder(encoder, layer)
    device = next(module.parameters()).device if device is None else pick_device(str(device))
    checked(view, View, "view")
    if batch_size < 1:
        raise BadInput(f"batch_size = {batch_size}: must be at least 1")
    options.setdefault("progress", progress_reporter(None).on_progress)
    splits = list(find_splits(module, images, view, options["progress"]))
    features = [probes.embed(module, split, device, batch_size, layer, normalize, view, **options) for split in splits]
    if len(features) == 1:
        return features[0]
    values, labels = zip(*features, strict=True)
    return Features(torch.cat(values), torch.cat(labels))


def find_encoder(encoder: Encoder | Run | str | Path, layer: str) -> Encoder:
    """The encoder as a module, with its run's projector if that layer is asked for."""
    if isinstance(encoder, (str, Path)):
        module = open_encoder(encoder).to(pick_device("auto"))
    elif isinstance(encoder, Run):
        module = encoder.encoder
    elif isinstance(encoder, Encoder):
        module = encoder
    else:
        raise BadInput(
            f"the encoder is of type {type(encoder).__name__}; give a run, an encoder, or the path of one of them"
        )
    if layer == PROJECTOR and module.projector is None and not isinstance(encoder, Encoder):
        folder = encoder.folder if isinstance(encoder, Run) else encoder
        module.projector = load_projector(folder).to(next(module.parameters()).device)
    return module


def find_splits(encoder: Encoder, images: Any, view: View, progress: Any) -> Iterator[Split]:
    """The images as splits of a store, decoded no larger than the view needs."""
    if isinstance(images, Split):
        yield images
        return
    if isinstance(images, Data):
        raise BadInput("data have several splits; embed data.train or data.held_out")
    short_side = evaluation_short_side(encoder.size, view)
    resample: Any = "bicubic" if view == "whole" else "bilinear"
    if isinstance(images, (str, Path)) and not is_image_file(images):
        spec = DataSpec(source=str(images), short_side=short_side, resample=resample)
        with report_to(ProgressFunction(progress)):
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
