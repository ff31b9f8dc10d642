"""`export` and `import_checkpoint`: an encoder for other libraries, and from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import Unpack

from supancl.config import FLAG
from supancl.errors import BadInput, did_you_mean, make_visible
from supancl.files import Output, is_as_written, read_json, write_text
from supancl.reporter import say, track
from supancl.runs.hub import split_encoder_name
from supancl.use import EncoderArgument, ForeignOptions, open_encoders
from supancl.version import __version__

if TYPE_CHECKING:
    from supancl.evaluation.encoder import EvaluatedEncoder
    from supancl.use.exporting import Exported

FORMAT_NAMES = ("hf", "onnx", "pt2", "torchvision")


def export(
    encoder: EncoderArgument, out: Annotated[str | Path, FLAG], *, format: tuple[str, ...] | str | None = None
) -> dict[str, Any]:
    """Write an encoder for timm, transformers, ONNX or torchvision.

    Each format is compared with the encoder on images of its run, and a README.md says how to load it.

    Parameters
    ----------
    encoder
        a run folder, or any encoder that evaluate takes
    out
        the folder to make
    format
        some of hf, onnx, pt2 and torchvision (default: every one that can hold the encoder)

    Returns
    -------
    dict
        the files of each format, and how far its features differ

    Examples
    --------
    $ supancl export runs/photos --out photos-encoder
    $ supancl export runs/photos --out photos-encoder --format hf,onnx
    """
    names = list(dict.fromkeys([format] if isinstance(format, str) else format or FORMAT_NAMES))
    for name in names:
        if name not in FORMAT_NAMES:
            raise BadInput(f"format {name}: no such format{did_you_mean(name, FORMAT_NAMES)}")
    output = Output(Path(out)).check()
    (evaluated,) = open_encoders(encoder, {"device": "cpu", "no_cache": True}, saves_results=False)
    from supancl.use.exporting import CannotHold, prepare, write_and_check

    evaluated.encoder.eval()
    written: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    with output.folder() as folder:
        exported = prepare(evaluated, folder)
        for name in track(names, "writing formats and comparing them"):
            try:
                written[name] = write_and_check(exported, name)
            except CannotHold as error:
                if format is not None:
                    raise BadInput(f"format {name}: {error}; leave format out for every format that works") from None
                left_out[name] = str(error)
        if not written:
            raise BadInput(f"{exported.encoder.spec.name}: no format can hold it ({left_out})")
        write_text(folder / "README.md", model_card(output.path.name, evaluated, exported, written))
    spec = exported.encoder.spec
    say(
        f"{out}: {spec.name}, {exported.encoder.width} features; each format compared with the encoder on "
        f"{exported.origin}"
    )
    for name, row in written.items():
        size = sum(row["files"].values()) / 1e6
        say(f"{name}: {', '.join(row['files'])}, {size:.1f} MB; largest difference {row['difference']:.1e}")
    for name, why in left_out.items():
        say(f"left out: {name} ({why})")
    say(f"{out}/README.md says how to load each; the weights belong to whoever trained them")
    return {
        "encoder": evaluated.location,
        "out": str(out),
        "architecture": spec.name,
        "channels": spec.channels,
        "size": spec.size,
        "width": exported.encoder.width,
        "formats": written,
        "left_out": left_out,
        "compared_on": exported.origin,
    }


def import_checkpoint(
    encoder: str | Path, out: Annotated[str | Path, FLAG], **options: Unpack[ForeignOptions]
) -> dict[str, Any]:
    """Convert another library's encoder to encoder.safetensors.

    Nothing in a file is executed.

    Parameters
    ----------
    encoder
        NAME@FILE, timm:NAME, torchvision:NAME, or a checkpoint of another library (docs/import.md)
    out
        the .safetensors to write, or a folder for encoder.safetensors
    options
        what its file may not say: size, mean, std, branch, prefix (`supancl import --help`)

    Returns
    -------
    dict
        the recognised format, the architecture and the path of the file

    Examples
    --------
    $ supancl import checkpoint.pth --out imported
    $ supancl import timm:resnet18 --out resnet18.safetensors
    """
    split_encoder_name(str(encoder))
    from supancl.runs.importing import convert_checkpoint

    result = convert_checkpoint(str(encoder), out, **options)
    say(", ".join(f"{key} {value}" for key, value in result.items() if value != ""))
    return result


# --- README.md: what the encoder is, how to load it, how it was trained, its results ----------------------------------

TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

An image encoder: {{ images }} -> {{ encoder.width }} features. Architecture `{{ encoder.spec.name }}`, written by
supancl {{ version }}.

**Licence.** The weights belong to whoever trained them. supancl is MIT-licensed and claims nothing of what it trains.
Choose a licence before you publish the folder, and name it in the first lines of this file. The training images have
their own terms.

## Load it

Run these in this folder. `images` are normalised images (batch, channels, height, width).
{% if "hf" in formats %}
With timm:

```python
{{ ours }}import timm

model = timm.create_model("local-dir:.", pretrained=True).eval()  # num_classes=N adds a classifier
features = model(images)
```

With transformers:

```python
{{ ours }}from transformers import AutoModel

model = AutoModel.from_pretrained(".").eval()
features = model(images).pooler_output
```

With supancl:

```python
import supancl

encoder = supancl.load_encoder(".")
features = encoder(images)
```
{% if ours %}
timm does not have this architecture. `supancl.use.timm_models` registers it; the file needs torch and timm only, so you
can also copy it from supancl into your project.
{% endif %}{% endif %}{% if "torchvision" in formats %}
With torchvision:

```python
import torch
import torchvision

model = torchvision.models.get_model("{{ torchvision[0] }}", weights=None, **{{ torchvision[1] }})
model.set_submodule("{{ torchvision[2] }}", torch.nn.Identity())
model.load_state_dict(torch.load("torchvision.pth", weights_only=True))
features = model.eval()(images)
```
{% endif %}{% if "pt2" in formats %}
With torch.export:

```python
import torch

model = torch.export.load("model.pt2").module()
features = model(images)
```
{% endif %}{% if "onnx" in formats %}
With onnxruntime:

```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(features,) = session.run(["features"], {"images": images.numpy()})
```
{% endif %}
## Prepare an image
{% if encoder.spec.name == "linear" %}
Vectors are used as they are.
{% else %}
Convert the image to {{ mode }}, resize its short side to {{ short_side }} px (bilinear), cut out the central
{{ encoder.size }} x {{ encoder.size }} px, divide by 255, subtract the mean {{ preprocessing.mean }} and divide by the
standard deviation {{ preprocessing.std }}. supancl also turns photographs upright, lays transparent ones over white,
and scales 16 bits to 8 (Pillow's `convert` clips them).
{% if "hf" in formats %}
```python
import timm
from PIL import Image

transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))  # timm's model
images = transform(Image.open("photo.jpg").convert("{{ mode }}"))[None]
```

transformers prepares it with `AutoImageProcessor.from_pretrained(".")`:
`processor(picture.convert("{{ mode }}"))["pixel_values"]`.
{% endif %}{% endif %}
## Training

| | |
| --- | --- |
{% for name, text in training if text %}| {{ name }} | {{ text }} |
{% else %}| Data | unknown: the encoder was not exported from a run |
{% endfor %}
## Results

| Evaluation | Data | Accuracy or mAP in %, 95% interval | Verdict |
| --- | --- | --- | --- |
{% for row in results %}| {{ row | join(" | ") }} |
{% endfor %}
## Check

Each file was loaded back and its features compared with supancl's, on {{ origin }}. The difference is the largest one,
as a fraction of the largest feature.

| File | Difference |
| --- | --- |
{% for row in formats.values() %}| {{ row.files | join(", ") }} | {{ "%.1e" | format(row.difference) }} |
{% endfor %}"""


def model_card(title: str, evaluated: EvaluatedEncoder, exported: Exported, formats: dict[str, Any]) -> str:
    """The card, with Hugging Face's header."""
    from huggingface_hub import ModelCard, ModelCardData

    from supancl.runs.hub import to_timm

    spec, in_timm = exported.encoder.spec, ["timm", "transformers"] * ("hf" in formats)
    is_ours, mode = to_timm(spec).architecture.startswith("supancl_"), "L" if spec.channels == 1 else "RGB"
    card = ModelCard.from_template(
        ModelCardData(
            library_name=in_timm[0] if in_timm else None,
            license="other",
            pipeline_tag="image-feature-extraction",
            tags=["supancl", *in_timm],
        ),
        template_str=TEMPLATE,
        title=title,
        version=__version__,
        encoder=exported.encoder,
        images=f"vectors of {spec.size} numbers" if spec.name == "linear" else f"{mode} images of {spec.size} px",
        mode=mode,
        short_side=spec.size if exported.is_whole else round(spec.size * 8 / 7),
        preprocessing=exported.preprocessing,
        ours="import supancl.use.timm_models  # registers the architecture with timm\n" * is_ours,
        torchvision=exported.torchvision_model if "torchvision" in formats else None,
        training=list(_training(evaluated)),
        results=list(_results(evaluated)),
        origin=exported.origin,
        formats=formats,
    )
    return make_visible(str(card), keep="\n")


def _training(evaluated: EvaluatedEncoder) -> Iterator[tuple[str, str]]:
    """Data, recipe and versions of a run."""
    from supancl.evaluation.results import data_name

    recipe, run = evaluated.recipe, evaluated.run
    if recipe is None or run is None:
        return
    data, start, versions = run.read_data()[0], run.read_init(), run.read("versions", dict[str, str]())
    yield "Data", " + ".join(data_name(source) for source in recipe.data.all_sources)
    yield (
        "Images",
        ", ".join(f"{key}: {data[key]}" for key in ("train", "labelled", "held_out", "classes") if key in data),
    )
    yield "Recipe", f"`{recipe.name}` (method {recipe.method})"
    alpha = f", alpha {recipe.loss.alpha}" if hasattr(recipe.loss, "alpha") else ""
    train = recipe.train
    yield "Settings", f"epochs {train.epochs}, batch size {train.batch_size}, seed {train.seed}{alpha}"
    yield "Started from", f"other weights (digest {start['digest'][:12]}), whose terms apply too" if start else ""
    yield "Not finished", run.describe_early_end(recipe)
    yield "Versions", ", ".join(f"{name} {versions[name]}" for name in ("supancl", "torch") if name in versions)


def _results(evaluated: EvaluatedEncoder) -> Iterator[tuple[str, ...]]:
    """The accuracies of these weights in RUN/evaluate."""
    from supancl.evaluation.results import data_name, figure_of, figure_text

    for path in sorted(evaluated.run.evaluations.glob("*.json")) if evaluated.run is not None else ():
        result = read_json(path)
        if is_as_written(result) and figure_of(result) is not None and result.get("weights") == evaluated.weights:
            data = data_name(str(result.get("source") or result.get("data") or ""))
            data += " (trained on some of these images)" * bool(result.get("overlaps_training"))
            images = result.get("tested_images") or result.get("images")
            verdict = str(result.get("verdict") or "")
            yield path.stem, data, f"{figure_text(result)}, images: {images}", verdict
