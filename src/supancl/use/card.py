"""README.md of an export: what the encoder is, how to load it in each way, how it was trained, its results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from supancl.errors import make_visible, plural
from supancl.evaluation.encoder import EvaluatedEncoder
from supancl.evaluation.naming import data_name, figure_of
from supancl.evaluation.suite import describe_result
from supancl.files import is_as_written, read_json
from supancl.reports.tables import Table, write_table
from supancl.runs.hub import to_timm
from supancl.use import graphs, hugging_face, torchvision_file
from supancl.use.exported import ExportedEncoder
from supancl.use.formats import FORMATS, Written
from supancl.version import __version__

CARD = "README.md"
OWNERSHIP = (
    "The weights belong to whoever trained them. supancl is MIT-licensed and claims nothing of what it trains. "
    "Choose a licence before you publish the folder, and name it in the first lines of this file."
)
PROTOCOLS = {"knn": "k-NN", "linear": "linear classifier", "transfer": "transfer", "finetune": "fine-tuning"}


def write_card(title: str, evaluated: EvaluatedEncoder, exported: ExportedEncoder, written: dict[str, Written]) -> str:
    """The whole text, in Markdown with Hugging Face's header."""
    encoder, spec = exported.encoder, exported.encoder.spec
    kind = {1: "grey", 3: "RGB"}.get(spec.channels, f"{spec.channels}-channel")
    images = f"vectors of {spec.channels * spec.size} numbers"
    if spec.name != "linear":
        images = f"{kind} images of {spec.size} x {spec.size} px"
    sections = [
        "\n".join(_header(written)),
        f"# {make_visible(title)}",
        f"An image encoder: {images} -> {encoder.width} features. Architecture `{make_visible(spec.name)}`, written by "
        f"supancl {__version__}.",
        f"**Licence.** {OWNERSHIP}{_other_terms(evaluated)}",
        "## Load it",
        "Run these in this folder. `images` are normalised images (batch, channels, height, width); see "
        "[Prepare an image](#prepare-an-image).",
        *_loading(exported, written),
        "## Prepare an image",
        *_preparing(exported, written),
        "## Training",
        _training(evaluated),
        "## Results",
        *_results(evaluated),
        "## Check",
        *_check(exported, written),
    ]
    return "\n\n".join(sections) + "\n"


def _header(written: dict[str, Written]) -> Iterator[str]:
    yield "---"
    if "hf" in written:
        yield "library_name: timm"
    yield "pipeline_tag: image-feature-extraction"
    yield "license: other  # yours to choose: see below"
    yield "tags:"
    yield from (f"- {tag}" for tag in ("supancl", *(["timm", "transformers"] if "hf" in written else [])))
    yield "---"


def _other_terms(evaluated: EvaluatedEncoder) -> str:
    start = None if evaluated.run is None else evaluated.run.read_init()
    text = " The training images have their own terms."
    if start is not None:
        text += " The run started from other weights, whose terms apply too."
    return text


# --- loading ----------------------------------------------------------------------------------------------------------


def _loading(exported: ExportedEncoder, written: dict[str, Written]) -> Iterator[str]:
    for way, code in loading_code(exported, written).items():
        yield f"With {way}:"
        yield f"```python\n{code}\n```"
    if "hf" in written and to_timm(exported.encoder.spec).is_ours:
        yield (
            "timm does not have this architecture. `supancl.use.timm_models` registers it; the file needs torch and "
            "timm only, so you can also copy it from supancl into your project."
        )
    if "hf" in written and "num_heads" in (arguments := to_timm(exported.encoder.spec).arguments):
        yield (
            f"With `checkpoint_path` do not leave num_heads={arguments['num_heads']} out: timm would load the file "
            "with another number of heads, without an error, and give other features."
        )


def loading_code(exported: ExportedEncoder, written: dict[str, Written]) -> dict[str, str]:
    """Per way of loading the lines that turn `images` into `features`."""
    code: dict[str, str] = {}
    if "hf" in written:
        code |= _hugging_face_code(exported)
        if not written["hf"].not_loaded.get("transformers", "needs").startswith("needs"):
            del code["transformers"]  # it was tried, and cannot load the architecture
    if "torchvision" in written:
        name, arguments, classifier = torchvision_file.find_torchvision_model(exported)
        given = "".join(f", {key}={value!r}" for key, value in arguments.items())
        code["torchvision"] = (
            "import torch\nimport torchvision\n\n"
            f'model = torchvision.models.get_model("{name}", weights=None{given})\n'
            f'model.set_submodule("{classifier}", torch.nn.Identity())\n'
            f'model.load_state_dict(torch.load("{torchvision_file.FILE}", weights_only=True))\n'
            "features = model.eval()(images)"
        )
    if "pt2" in written:
        code["torch.export"] = (
            f'import torch\n\nmodel = torch.export.load("{graphs.PT2}").module()\nfeatures = model(images)'
        )
    if "onnx" in written:
        code["onnxruntime"] = (
            f'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{graphs.ONNX}")\n'
            '(features,) = session.run(["features"], {"images": images.numpy()})'
        )
    if "hf" in written:
        code["supancl"] = 'import supancl\n\nencoder = supancl.load_encoder(".")\nfeatures = encoder(images)'
    return code


def _hugging_face_code(exported: ExportedEncoder) -> dict[str, str]:
    config = json.loads((exported.folder / hugging_face.CONFIG).read_text())
    given = "".join(f", {key}={value!r}" for key, value in config["model_args"].items())
    is_ours = to_timm(exported.encoder.spec).is_ours
    ours = "import supancl.use.timm_models  # registers the architecture with timm\n" if is_ours else ""
    return {
        "timm": f"{ours}import timm\n\n"
        'model = timm.create_model("local-dir:.", pretrained=True).eval()  # num_classes=N adds a classifier\n'
        "features = model(images)",
        "timm, from the file alone": f"{ours}import timm\n\nmodel = timm.create_model(\n"
        f'    "{config["architecture"]}", checkpoint_path="{hugging_face.WEIGHTS}", num_classes=0{given}\n'
        ")\nfeatures = model.eval()(images)",
        "transformers": f"{ours}from transformers import AutoModel\n\n"
        'model = AutoModel.from_pretrained(".").eval()\nfeatures = model(images).pooler_output',
    }


# --- preparing an image -----------------------------------------------------------------------------------------------


def _preparing(exported: ExportedEncoder, written: dict[str, Written]) -> Iterator[str]:
    settings, spec = exported.preprocessing, exported.encoder.spec
    if spec.name == "linear":
        yield "Vectors are used as they are."
        return
    short_side = spec.size if exported.images.is_whole else round(spec.size * 8 / 7)
    mode = "grey" if spec.channels == 1 else "RGB"
    yield (
        f"Convert the image to {mode}, resize its short side to {short_side} px (bilinear), cut out the central "
        f"{spec.size} x {spec.size} px, divide by 255, subtract the mean {settings['mean']} and divide by the standard "
        f"deviation {settings['std']}. supancl also turns photographs upright, lays transparent ones over white, and "
        "scales 16 bits to 8 (Pillow's `convert` clips them). It cuts images that are smaller before it enlarges them: "
        f"up to {spec.size} px it takes the whole short side, up to {round(spec.size * 8 / 7)} px 7/8 of it."
    )
    if "hf" in written:
        pillow = "L" if spec.channels == 1 else "RGB"
        yield (
            "```python\nimport timm\nfrom PIL import Image\n\n"
            "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))  # timm's model\n"
            f'images = transform(Image.open("photo.jpg").convert("{pillow}"))[None]\n```'
        )
        yield (
            f'transformers prepares it with `AutoImageProcessor.from_pretrained(".")`: '
            f'`processor(picture.convert("{pillow}"))["pixel_values"]`.'
        )


# --- training and results ---------------------------------------------------------------------------------------------


def _training(evaluated: EvaluatedEncoder) -> str:
    recipe, run = evaluated.recipe, evaluated.run
    if recipe is None or run is None:
        return "The encoder was not exported from a run, so nothing is known about its training."
    data, _ = run.read_data()
    versions = run.read_versions()
    rows: list[tuple[str, str]] = [
        ("Data", " + ".join(data_name(source) for source in recipe.data.all_sources)),
        ("Images", _counts(data)),
        ("Recipe", f"`{recipe.name}` (method {recipe.method})"),
        ("Epochs, batch size, seed", f"{recipe.train.epochs}, {recipe.train.batch_size}, {recipe.train.seed}"),
    ]
    alpha = getattr(recipe.loss, "alpha", None)
    if alpha is not None:
        rows.append(("alpha", f"{alpha:g}"))
    if changed := _changed_settings(recipe.sources):
        rows.append(("Changed settings", changed))
    if run.read_init() is not None:
        rows.append(("Started from", f"other weights (digest {run.read_init()['digest'][:12]})"))  # type: ignore[index]
    if early := run.describe_early_end(recipe):
        rows.append(("Not finished", early))
    rows.append(
        ("Versions", ", ".join(f"{name} {versions[name]}" for name in ("supancl", "torch") if name in versions))
    )
    return write_table(Table(("", ""), [(name, make_visible(text)) for name, text in rows]), "markdown").strip()


def _counts(data: dict[str, Any]) -> str:
    """`1347 to train on (1347 labelled, 10 classes), 450 held out`, as far as known."""
    if not isinstance(data.get("train"), int):
        return "not recorded"
    text = f"{data['train']:,} to train on"
    if isinstance(data.get("labelled"), int) and isinstance(data.get("classes"), int):
        text += f" ({data['labelled']:,} labelled, {plural(data['classes'], 'class', 'classes')})"
    return f"{text}, {data['held_out']:,} held out" if isinstance(data.get("held_out"), int) else text


def _changed_settings(sources: Any) -> str:
    """The flags that the run was started with; paths and the device are left out."""
    flags = {str(flag) for field, flag in dict(sources).items() if field not in ("data.source", "data.joined")}
    flags.discard("set")  # of a field that follows another one
    return ", ".join(f"`{flag}`" for flag in sorted(flags) if flag.startswith("--") and "device" not in flag)


def _results(evaluated: EvaluatedEncoder) -> Iterator[str]:
    rows, stale = [], 0
    for result in _saved_results(evaluated):
        if result.get("weights") != evaluated.weights:
            stale += 1
            continue
        rows.append(_result_row(result))
    if rows:
        figure = "Accuracy or mAP" if any("mAP" in row[2] for row in rows) else "Accuracy"
        columns = ("Protocol", "Data", f"{figure} in %, 95% interval", "Verdict")
        yield write_table(Table(columns, rows), "markdown").strip()
    else:
        yield "Not evaluated. `supancl evaluate knn RUN` and export again to have results here."
    if stale:
        yield f"{plural(stale, 'result')} of earlier weights of this run {'is' if stale == 1 else 'are'} left out."


def _saved_results(evaluated: EvaluatedEncoder) -> Iterator[dict[str, Any]]:
    """The intact accuracies in RUN/evaluate."""
    for path in sorted(evaluated.run.evaluations.glob("*.json")) if evaluated.run is not None else ():
        content = read_json(path)
        if is_as_written(content) and figure_of(content) is not None:
            yield content


def _result_row(result: dict[str, Any]) -> tuple[str, ...]:
    protocol = str(result.get("protocol"))
    name = PROTOCOLS.get(protocol, protocol)
    if protocol == "fewshot":
        name = f"few-shot, {result.get('ways')} ways, {result.get('shots')} shots"
    if protocol == "knn":
        name += f", k = {result.get('k')}"
    if result.get("layer", "pooled") != "pooled":
        name += f", layer {result['layer']}"
    data = data_name(str(result.get("source") or result.get("data") or ""))
    if result.get("overlaps_training"):
        data += " (trained on some of these images)"
    return name, make_visible(data), describe_result(result), str(result.get("verdict") or "")


def _check(exported: ExportedEncoder, written: dict[str, Written]) -> Iterator[str]:
    yield (
        "Each file was loaded back and its features compared with supancl's, on "
        f"{make_visible(exported.images.origin)}. The difference is the largest one, as a fraction of the largest "
        "feature."
    )
    tolerances = {way.name: way.tolerance for row in FORMATS.values() for way in row.ways}
    rows = [
        (", ".join(row.files), name, f"{difference:.1e}" if difference else "0", f"{tolerances[name]:.0e}")
        for row in written.values()
        for name, difference in row.differences.items()
    ]
    rows += [
        (", ".join(row.files), name, f"not loaded: {why}", "")
        for row in written.values()
        for name, why in row.not_loaded.items()
    ]
    yield write_table(Table(("File", "Loaded with", "Difference", "Accepted"), rows), "markdown").strip()
