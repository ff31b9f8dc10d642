"""How good an encoder is: all it takes is images -> features, however the encoder was trained."""

from supancl.evaluate.features import Features, embed
from supancl.evaluate.knn import knn_accuracy, knn_predict
from supancl.evaluate.linear import linear_accuracy
from supancl.evaluate.variance import Variance, effective_rank, variance

__all__ = [
    "Features", "Variance", "effective_rank", "embed", "knn_accuracy", "knn_predict", "linear_accuracy", "variance",
]
