"""Sources of images, batches of them, their views and their order."""

from supancl.data.opening import from_arrays, open_data
from supancl.data.splits import Data, DataSpec, Split
from supancl.data.store.memory import Batch
from supancl.data.views.specs import Crops, Masks

__all__ = ["Batch", "Crops", "Data", "DataSpec", "Masks", "Split", "from_arrays", "open_data"]
