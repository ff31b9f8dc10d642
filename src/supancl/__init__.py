"""supancl: pretrain image encoders with supervised asymmetric non-contrastive learning.

>>> import supancl
>>> supancl.recipe("cifar100.supsiam").loss
Align(kind='align', alpha=0.5, form='cosine', samples=None)
"""

from supancl.branches import Branches, BranchSpec, HeadSpec
from supancl.checkpoint import load_encoder, load_projector
from supancl.data import Crops, Data, DataSpec, Masks, from_arrays, open_data
from supancl.encoders import Encoder, EncoderSpec
from supancl.errors import BadInput, Collapsed, Interrupted, NonFinite, SupanclError
from supancl.evaluate import (
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
from supancl.heads import MLP
from supancl.importing import import_checkpoint, open_encoder
from supancl.losses import Align, Contrast, CrossEntropy, Terms
from supancl.methods import METHODS, Method
from supancl.pools import ClassQueues, Pool, PoolSpec, Prototypes, Queue
from supancl.recipes import RECIPES, Recipe, recipe, register
from supancl.schedules import ema_momentum, learning_rate
from supancl.train import Reporter, Run, pretrain

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "MLP",
    "RECIPES",
    "Align",
    "BadInput",
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
    "transfer",
    "variance",
]
