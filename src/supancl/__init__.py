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
Data(arrays: 32 training images, all labelled, 8 held out, 2 classes)
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

from supancl.errors import BadInput as BadInput
from supancl.errors import Collapsed as Collapsed
from supancl.errors import Interrupted as Interrupted
from supancl.errors import NonFinite as NonFinite
from supancl.errors import SupanclError as SupanclError
from supancl.lazy import lazy_names
from supancl.reporter import Reporter as Reporter
from supancl.reporter import set_default_reporter
from supancl.version import __version__ as __version__

if TYPE_CHECKING:
    from supancl.cli.doctor import doctor as doctor
    from supancl.core.branches import Branches as Branches
    from supancl.core.branches import BranchSpec as BranchSpec
    from supancl.core.branches import HeadSpec as HeadSpec
    from supancl.core.encoders import Encoder as Encoder
    from supancl.core.encoders import EncoderSpec as EncoderSpec
    from supancl.core.heads import MLP as MLP
    from supancl.core.losses import Align as Align
    from supancl.core.losses import Contrast as Contrast
    from supancl.core.losses import CrossEntropy as CrossEntropy
    from supancl.core.losses import SemiAlign as SemiAlign
    from supancl.core.losses import Terms as Terms
    from supancl.core.methods import METHODS as METHODS
    from supancl.core.methods import Method as Method
    from supancl.core.pools import ClassQueues as ClassQueues
    from supancl.core.pools import Pool as Pool
    from supancl.core.pools import PoolSpec as PoolSpec
    from supancl.core.pools import Prototypes as Prototypes
    from supancl.core.pools import Queue as Queue
    from supancl.core.schedules import ema_momentum as ema_momentum
    from supancl.core.schedules import learning_rate as learning_rate
    from supancl.data import Crops as Crops
    from supancl.data import Data as Data
    from supancl.data import DataSpec as DataSpec
    from supancl.data import Masks as Masks
    from supancl.data import from_arrays as from_arrays
    from supancl.data import open_data as open_data
    from supancl.data.sources.benchmarks import Benchmark as Benchmark
    from supancl.probes import Features as Features
    from supancl.probes import collapse as collapse
    from supancl.probes import effective_rank as effective_rank
    from supancl.probes import few_shot as few_shot
    from supancl.probes import knn_accuracy as knn_accuracy
    from supancl.probes import linear_accuracy as linear_accuracy
    from supancl.probes import linear_probe as linear_probe
    from supancl.probes import transfer as transfer
    from supancl.probes import variance as variance
    from supancl.recipes import RECIPES as RECIPES
    from supancl.recipes import Recipe as Recipe
    from supancl.recipes import recipe as recipe
    from supancl.recipes import register as register
    from supancl.recipes import register_benchmark as register_benchmark
    from supancl.recipes import register_encoder as register_encoder
    from supancl.reports.listings import list_recipes as list_recipes
    from supancl.reports.listings import list_runs as list_runs
    from supancl.reports.listings import show_data as show_data
    from supancl.runs.encoder_file import load_encoder as load_encoder
    from supancl.runs.encoder_file import load_projector as load_projector
    from supancl.runs.importing import open_encoder as open_encoder
    from supancl.sweeps.compare import compare as compare
    from supancl.training.run import Run as Run
    from supancl.training.run import load as load
    from supancl.training.start import pretrain as pretrain
    from supancl.use.audit import audit as audit
    from supancl.use.detect import detect as detect
    from supancl.use.embed import embed as embed
    from supancl.use.estimator import ImageEncoder as ImageEncoder
    from supancl.use.evaluate import evaluate as evaluate
    from supancl.use.export import export as export
    from supancl.use.export import import_checkpoint as import_checkpoint
    from supancl.use.look import map as map
    from supancl.use.look import report as report
    from supancl.use.predict import predict as predict


def _terminal(verbose: bool | None) -> Reporter:
    from supancl.reports.terminal import python_terminal

    return python_terminal(verbose)


set_default_reporter(_terminal)

# imported when they are first used: torch takes seconds
_NAMES = {
    "supancl.cli.doctor": "doctor",
    "supancl.core.branches": "Branches BranchSpec HeadSpec",
    "supancl.core.encoders": "Encoder EncoderSpec",
    "supancl.core.heads": "MLP",
    "supancl.core.losses": "Align Contrast CrossEntropy SemiAlign Terms",
    "supancl.core.methods": "METHODS Method",
    "supancl.core.pools": "ClassQueues Pool PoolSpec Prototypes Queue",
    "supancl.core.schedules": "ema_momentum learning_rate",
    "supancl.data": "Crops Data DataSpec Masks from_arrays open_data",
    "supancl.data.sources.benchmarks": "Benchmark",
    "supancl.probes": "Features collapse effective_rank few_shot knn_accuracy "
    "linear_accuracy linear_probe transfer variance",
    "supancl.recipes": "RECIPES Recipe recipe register register_benchmark register_encoder",
    "supancl.reports.listings": "list_recipes list_runs show_data",
    "supancl.sweeps.compare": "compare",
    "supancl.training.run": "Run load",
    "supancl.training.start": "pretrain",
    "supancl.use.audit": "audit",
    "supancl.use.detect": "detect",
    "supancl.use.embed": "embed",
    "supancl.use.estimator": "ImageEncoder",
    "supancl.use.evaluate": "evaluate",
    "supancl.use.export": "export import_checkpoint",
    "supancl.use.look": "map report",
    "supancl.use.predict": "predict",
    "supancl.runs.encoder_file": "load_encoder load_projector",
    "supancl.runs.importing": "open_encoder",
}

if not TYPE_CHECKING:  # so that type checkers and editors report misspelled names
    __getattr__ = lazy_names(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for names in _NAMES.values() for name in names.split())})
