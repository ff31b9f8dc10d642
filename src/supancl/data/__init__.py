"""Sources of images, batched views, and the order in which they come."""

from supancl.data.splits import Data, DataSpec, Split, from_arrays, open_data
from supancl.data.store.images import Batch
from supancl.data.views.specs import Crops, Masks

__all__ = ["Batch", "Crops", "Data", "DataSpec", "Masks", "Split", "from_arrays", "open_data"]
