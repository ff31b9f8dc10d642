"""supancl: pretrain image encoders with supervised asymmetric non-contrastive learning.

Train an encoder on a folder, an array or a data set, read it later, and use it:

>>> import supancl
>>> run = supancl.pretrain("digits.supsiam", out="runs/digits", epochs=2, alpha=0.3, limit=256)
>>> run = supancl.load("runs/digits")
>>> run.encoder.width, run.recipe.loss.alpha, run.metrics[-1]["epoch"], run.results
(64, 0.3, 1, {})

Features of arrays, Pillow images, paths and folders; or preprocess one image and call the encoder, a torch module:

>>> import numpy as np
>>> images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), np.uint8)
>>> features = supancl.embed(run, images)
>>> features.values.shape
torch.Size([5, 64])
>>> run.encoder(run.encoder.transform(images[0])[None]).shape
torch.Size([1, 64])

An encoder alone, from a file of ours or of another library (`open_encoder("timm:NAME")`):

>>> encoder = supancl.load_encoder("runs/digits/encoder.safetensors")
>>> encoder.width, supancl.open_encoder("runs/digits").size
(64, 16)

Data, and the settings of a run, by name:

>>> data = supancl.open_data("digits", channels=1)  # a folder, a .npz, a .csv, ...
>>> supancl.from_arrays(images.repeat(8, 0), [0, 1] * 20)
Data(arrays; training images: 32, labelled: 32, held out: 8, classes: 2)
>>> supancl.recipe("digits.supsiam", epochs=2).train.epochs
2

How good are the features?

>>> train, test = supancl.embed(run, data.train), supancl.embed(run, data.held_out)
>>> supancl.knn_accuracy(train, test) > 50, supancl.linear_accuracy(train, test) > 50
(True, True)

In scikit-learn, and what a mistake raises:

>>> supancl.ImageEncoder(epochs=1, settings={"encoder.name": "cnn"}).fit_transform(images.repeat(4, 0)).shape
(20, 256)
>>> supancl.recipe("digits.supsiam", alhpa=0.3)
Traceback (most recent call last):
...
supancl.errors.BadInput: unknown field 'alhpa'; did you mean 'loss.alpha'?

Every command is a function with the same arguments: pretrain, evaluate, predict, embed, compare, report, map, audit,
export, import_checkpoint, detect, list_runs, show_data, list_recipes, doctor. `help(supancl.pretrain)` explains one.

docs/python.md explains these names. Losses, pools, heads, measures and errors can be imported from here too
(`supancl.Align`); their modules document them: supancl.core, supancl.probes, supancl.data, supancl.recipes,
supancl.runs, supancl.training, supancl.errors.
"""

from typing import TYPE_CHECKING

from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite, SupanclError
from supancl.lazy import lazy_names
from supancl.reporter import Reporter, set_default_reporter
from supancl.version import __version__

if TYPE_CHECKING:
    from supancl.cli.doctor import doctor
    from supancl.core.branches import Branches, BranchSpec, HeadSpec
    from supancl.core.encoders import Encoder, EncoderSpec
    from supancl.core.losses import Align, Contrast, CrossEntropy, SemiAlign, Terms
    from supancl.core.methods import METHODS, Method
    from supancl.core.pools import ClassQueues, Pool, PoolSpec, Prototypes, Queue
    from supancl.core.specs import MLP, ema_momentum, learning_rate
    from supancl.data import Crops, Data, DataSpec, Masks, from_arrays, open_data
    from supancl.data.sources.benchmark_rows import Benchmark
    from supancl.probes import (
        Features,
        collapse,
        effective_rank,
        few_shot,
        knn_accuracy,
        linear_accuracy,
        linear_probe,
        transfer,
        variance,
    )
    from supancl.recipes import RECIPES, Recipe, recipe, register, register_benchmark, register_encoder
    from supancl.reports.listings import list_recipes, list_runs, show_data
    from supancl.runs.encoder_file import load_encoder, load_projector
    from supancl.runs.importing import open_encoder
    from supancl.sweeps.compare import compare
    from supancl.training.run import Run, load
    from supancl.training.start import pretrain
    from supancl.use.detect import detect
    from supancl.use.embed import embed
    from supancl.use.estimator import ImageEncoder
    from supancl.use.evaluate import evaluate
    from supancl.use.export import export, import_checkpoint
    from supancl.use.look import audit, map, report
    from supancl.use.predict import predict

    # not at run time: help(supancl) would show all of each
    __all__ = [
        "METHODS", "MLP", "RECIPES", "Align", "BadInput", "Benchmark", "BranchSpec", "Branches", "ClassQueues",
        "Collapsed", "Contrast", "Crops", "CrossEntropy", "Data", "DataSpec", "Encoder", "EncoderSpec", "Features",
        "HeadSpec", "ImageEncoder", "Interrupted", "Masks", "Method", "NonFinite", "Pool", "PoolSpec", "Prototypes",
        "Queue", "Recipe", "Reporter", "Run", "SemiAlign", "SupanclError", "Terms", "__version__", "audit",
        "collapse", "compare", "detect", "doctor", "effective_rank", "ema_momentum", "embed", "evaluate", "export",
        "few_shot", "from_arrays", "import_checkpoint", "knn_accuracy", "learning_rate", "linear_accuracy",
        "linear_probe", "list_recipes", "list_runs", "load", "load_encoder", "load_projector", "map", "open_data",
        "open_encoder", "predict", "pretrain", "recipe", "register", "register_benchmark", "register_encoder",
        "report", "show_data", "transfer", "variance",
    ]  # fmt: skip


def _terminal(verbose: bool | None) -> Reporter:
    from supancl.reports.terminal import python_terminal

    return python_terminal(verbose)


set_default_reporter(_terminal)

if not TYPE_CHECKING:  # so that type checkers and editors report misspelled names
    __getattr__, __dir__ = lazy_names(__name__, __file__)
