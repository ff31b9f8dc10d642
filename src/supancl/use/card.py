"""README.md of an export: what the encoder is, how to load it in each way, how it was trained, its results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard, ModelCardData

from supancl.errors import make_visible
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.results import data_name, figure_of
from supancl.evaluation.suite import describe_result
from supancl.files import is_as_written, read_json
from supancl.version import __version__

if TYPE_CHECKING:
    from supancl.use.exporting import Exported

PROTOCOLS = {"knn": "k-NN", "linear": "linear classifier", "transfer": "transfer", "finetune": "fine-tuning"}
OURS = "import supancl.use.timm_models  # registers the architecture with timm\n"
# per format the ways to load it: lines that turn `images` into `features`
LOADING = {
    "hf": {
        "timm": """{ours}import timm

model = timm.create_model("local-dir:.", pretrained=True).eval()  # num_classes=N adds a classifier
features = model(images)""",
        "timm, from the file alone": """{ours}import timm

file = "model.safetensors"
model = timm.create_model("{timm}", checkpoint_path=file, num_classes=0{timm_arguments})
features = model.eval()(images)""",
        "transformers": """{ours}from transformers import AutoModel

model = AutoModel.from_pretrained(".").eval()
features = model(images).pooler_output""",
        "supancl": """import supancl

encoder = supancl.load_encoder(".")
features = encoder(images)""",
    },
    "torchvision": {
        "torchvision": """import torch
import torchvision

model = torchvision.models.get_model("{torchvision}", weights=None{torchvision_arguments})
model.set_submodule("{classifier}", torch.nn.Identity())
model.load_state_dict(torch.load("torchvision.pth", weights_only=True))
features = model.eval()(images)""",
    },
    "pt2": {
        "torch.export": """import torch

model = torch.export.load("model.pt2").module()
features = model(images)""",
    },
    "onnx": {
        "onnxruntime": """import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(features,) = session.run(["features"], {{"images": images.numpy()}})""",
    },
}
TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

An image encoder: {{ images }} -> {{ width }} features. Architecture `{{ architecture }}`, written by supancl
{{ version }}.

**Licence.** The weights belong to whoever trained them. supancl is MIT-licensed and claims nothing of what it trains.
Choose a licence before you publish the folder, and name it in the first lines of this file. The training images have
their own terms.

## Load it

Run these in this folder. `images` are normalised images (batch, channels, height, width).
{% for way, code in loading.items() %}
With {{ way }}:

```python
{{ code }}
```
{% endfor %}
{%- if is_ours %}
timm does not have this architecture. `supancl.use.timm_models` registers it; the file needs torch and timm only, so you
can also copy it from supancl into your project.
{% endif %}
{%- if heads %}
With `checkpoint_path` do not leave num_heads={{ heads }} out: timm would load the file with another number of heads,
without an error, and give other features.
{% endif %}
## Prepare an image
{% if size %}
Convert the image to {{ mode }}, resize its short side to {{ short_side }} px (bilinear), cut out the central
{{ size }} x {{ size }} px, divide by 255, subtract the mean {{ mean }} and divide by the standard
deviation {{ std }}. supancl also turns photographs upright, lays
transparent ones over white, and scales 16 bits to 8 (Pillow's `convert` clips them).
{% if "hf" in files %}
```python
import timm
from PIL import Image

transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))  # timm's model
images = transform(Image.open("photo.jpg").convert("{{ pillow }}"))[None]
```

transformers prepares it with `AutoImageProcessor.from_pretrained(".")`:
`processor(picture.convert("{{ pillow }}"))["pixel_values"]`.
{% endif %}{% else %}
Vectors are used as they are.
{% endif %}
## Training
{% if training %}
| | |
| --- | --- |
{% for name, text in training %}| {{ name }} | {{ text }} |
{% endfor %}{% else %}
The encoder was not exported from a run, so nothing is known about its training.
{% endif %}
## Results
{% if results %}
| Protocol | Data | Accuracy or mAP in %, 95% interval | Verdict |
| --- | --- | --- | --- |
{% for row in results %}| {{ row | join(" | ") }} |
{% endfor %}{% else %}
Not evaluated. `supancl evaluate knn RUN` and export again to have results here.
{% endif %}
## Check

Each file was loaded back and its features compared with supancl's, on {{ origin }}. The difference is the largest one,
as a fraction of the largest feature.

| File | Difference |
| --- | --- |
{% for names, difference in files.values() %}| {{ names | join(", ") }} | {{ "%.1e" | format(difference) }} |
{% endfor %}"""


def write_card(title: str, evaluated: EvaluatedEncoder, exported: Exported, written: dict[str, Any]) -> ModelCard:
    """The card, with Hugging Face's header."""
    spec, run, name = exported.encoder.spec, evaluated.run, exported.timm_name
    is_vector, mode = spec.name == "linear", "grey" if spec.channels == 1 else "RGB"

    def keywords(arguments: dict[str, Any]) -> str:
        return "".join(f", {key}={value!r}" for key, value in arguments.items())

    values = {"ours": OURS * name.is_ours, "timm": name.architecture}
    if "hf" in written:
        values["timm_arguments"] = keywords(exported.timm_body[1])
    if "torchvision" in written:
        values["torchvision"], arguments, values["classifier"] = exported.torchvision_model
        values["torchvision_arguments"] = keywords(arguments)
    has_hf = "hf" in written
    data = ModelCardData(
        library_name="timm" if has_hf else None,
        license="other",
        pipeline_tag="image-feature-extraction",
        tags=["supancl", *["timm", "transformers"] * has_hf],
    )
    card: ModelCard = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        title=make_visible(title),
        images=f"vectors of {spec.size} numbers" if is_vector else f"{mode} images of {spec.size} px",
        width=exported.encoder.width,
        architecture=make_visible(spec.name),
        version=__version__,
        loading={way: code.format(**values) for kind in written for way, code in LOADING[kind].items()},
        is_ours=has_hf and name.is_ours,
        heads=name.arguments.get("num_heads") if has_hf else None,
        size=None if is_vector else spec.size,
        short_side=spec.size if exported.is_whole else round(spec.size * 8 / 7),
        mode=mode,
        pillow="L" if spec.channels == 1 else "RGB",
        mean=exported.preprocessing["mean"],
        std=exported.preprocessing["std"],
        training=[] if run is None else [(name, make_visible(text)) for name, text in _training(evaluated) if text],
        results=[[make_visible(text) for text in row] for row in _results(evaluated)],
        origin=make_visible(exported.origin),
        files={kind: (list(row["files"]), row["difference"]) for kind, row in written.items()},
    )
    return card


def _training(evaluated: EvaluatedEncoder) -> Iterator[tuple[str, str]]:
    """Data, recipe and versions of a run."""
    recipe, run = evaluated.recipe, evaluated.run
    assert recipe is not None
    assert run is not None
    data, versions, start, train = (
        run.read_data()[0],
        run.read("versions", dict[str, str]()),
        run.read_init(),
        recipe.train,
    )
    yield "Data", " + ".join(data_name(source) for source in recipe.data.all_sources)
    counts = (key for key in ("train", "labelled", "held_out", "classes") if key in data)
    yield "Images", ", ".join(f"{key}: {data[key]}" for key in counts)
    yield "Recipe", f"`{recipe.name}` (method {recipe.method})"
    alpha = f", alpha {recipe.loss.alpha}" if hasattr(recipe.loss, "alpha") else ""
    yield "Settings", f"epochs {train.epochs}, batch size {train.batch_size}, seed {train.seed}{alpha}"
    yield (
        "Started from",
        "" if start is None else f"other weights (digest {start['digest'][:12]}), whose terms apply too",
    )
    yield "Not finished", run.describe_early_end(recipe)
    yield "Versions", ", ".join(f"{name} {versions[name]}" for name in ("supancl", "torch") if name in versions)


def _results(evaluated: EvaluatedEncoder) -> Iterator[tuple[str, ...]]:
    """The accuracies of these weights in RUN/evaluate."""
    for path in sorted(evaluated.run.evaluations.glob("*.json")) if evaluated.run is not None else ():
        result = read_json(path)
        if is_as_written(result) and figure_of(result) is not None and result.get("weights") == evaluated.weights:
            protocol = str(result.get("protocol"))
            details = [f"{key} = {result[key]}" for key in ("k", "ways", "shots") if key in result]
            data = data_name(str(result.get("source") or result.get("data") or ""))
            data += " (trained on some of these images)" * bool(result.get("overlaps_training"))
            name = ", ".join([PROTOCOLS.get(protocol, protocol), *details])
            yield name, data, describe_result(result), str(result.get("verdict") or "")
