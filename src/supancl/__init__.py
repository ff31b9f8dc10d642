"""supancl: pretrain image encoders with supervised asymmetric non-contrastive learning.

>>> import supancl
>>> supancl.recipe("cifar100.supsiam").loss
Align(kind='align', alpha=0.5, form='cosine', samples=None)
"""

from typing import TYPE_CHECKING

from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite, SupanclError
from supancl.lazy import lazy_names
from supancl.moved import install, moved_attribute
from supancl.version import __version__ as __version__

if TYPE_CHECKING:
    from supancl.core.branches import Branches, BranchSpec, HeadSpec
    from supancl.core.encoders import Encoder, EncoderSpec
    from supancl.core.heads import MLP
    from supancl.core.losses import Align, Contrast, CrossEntropy, Terms
    from supancl.core.methods import METHODS, Method
    from supancl.core.pools import ClassQueues, Pool, PoolSpec, Prototypes, Queue
    from supancl.core.schedules import ema_momentum, learning_rate
    from supancl.data import Crops, Data, DataSpec, Masks, from_arrays, open_data
    from supancl.data.sources.benchmarks import Benchmark
    from supancl.probes import (
        collapse,
        effective_rank,
        embed,
        few_shot,
        knn_accuracy,
        linear_accuracy,
        linear_probe,
        transfer,
        variance,
    )
    from supancl.recipes import RECIPES, Recipe, recipe, register, register_benchmark, register_encoder
    from supancl.reporter import Reporter
    from supancl.training.extending import extend_run
    from supancl.training.pretrain import Run, pretrain
    from supancl.weights.encoder_file import load_encoder, load_projector
    from supancl.weights.importing import import_checkpoint, open_encoder

install()

__all__ = [
    "METHODS",
    "MLP",
    "RECIPES",
    "Align",
    "BadInput",
    "Benchmark",
    "BranchSpec",
    "Branches",
    "ClassQueues",
    "Collapsed",
    "Contrast",
    "Crops",
    "CrossEntropy",
    "Data",
    "DataSpec",
    "Encoder",
    "EncoderSpec",
    "HeadSpec",
    "Interrupted",
    "Masks",
    "Method",
    "NonFinite",
    "Pool",
    "PoolSpec",
    "Prototypes",
    "Queue",
    "Recipe",
    "Reporter",
    "Run",
    "SupanclError",
    "Terms",
    "collapse",
    "effective_rank",
    "ema_momentum",
    "embed",
    "extend_run",
    "few_shot",
    "from_arrays",
    "import_checkpoint",
    "knn_accuracy",
    "learning_rate",
    "linear_accuracy",
    "linear_probe",
    "load_encoder",
    "load_projector",
    "open_data",
    "open_encoder",
    "pretrain",
    "recipe",
    "register",
    "register_benchmark",
    "register_encoder",
    "transfer",
    "variance",
]

# the same names as above, imported when they are first used: torch takes seconds
_NAMES = {
    "supancl.core.branches": "Branches BranchSpec HeadSpec",
    "supancl.core.encoders": "Encoder EncoderSpec",
    "supancl.core.heads": "MLP",
    "supancl.core.losses": "Align Contrast CrossEntropy Terms",
    "supancl.core.methods": "METHODS Method",
    "supancl.core.pools": "ClassQueues Pool PoolSpec Prototypes Queue",
    "supancl.core.schedules": "ema_momentum learning_rate",
    "supancl.data": "Crops Data DataSpec Masks from_arrays open_data",
    "supancl.data.sources.benchmarks": "Benchmark",
    "supancl.probes": "collapse effective_rank embed few_shot knn_accuracy "
    "linear_accuracy linear_probe transfer variance",
    "supancl.recipes": "RECIPES Recipe recipe register register_benchmark register_encoder",
    "supancl.reporter": "Reporter",
    "supancl.training.extending": "extend_run",
    "supancl.training.pretrain": "Run pretrain",
    "supancl.weights.encoder_file": "load_encoder load_projector",
    "supancl.weights.importing": "import_checkpoint open_encoder",
}

if not TYPE_CHECKING:  # so that type checkers and editors report misspelled names
    __getattr__ = lazy_names(__name__, _NAMES, missing=moved_attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
