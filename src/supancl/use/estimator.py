"""`ImageEncoder`: pretraining as an estimator of scikit-learn, for pipelines, clones and grid searches."""

from __future__ import annotations

import copy
import json
import os
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from supancl.config import LARGEST_COUNT, to_json
from supancl.core.encoders import Encoder
from supancl.core.labels import Labels
from supancl.core.specs import EncoderSpec
from supancl.data.from_python import as_array, as_label_array, keep_missing
from supancl.data.opening import load
from supancl.data.preparing import prepare_data
from supancl.data.sources.arrays import FROM_PYTHON
from supancl.data.spec import DataSpec
from supancl.data.splits import Data, list_stored
from supancl.data.store.memory import ArrayImages
from supancl.data.views.specs import Masks
from supancl.errors import BadInput, Interrupted, did_you_mean
from supancl.files import Output, is_as_written, read_json, write_sealed_json
from supancl.recipes import Recipe, recipe, recipe_from_json
from supancl.recipes.auto import METHODS, TO_BE_CHOSEN
from supancl.recipes.shorthands import with_settings
from supancl.runs.encoder_file import load_encoder, save_encoder
from supancl.training.start import open_given, pretrain
from supancl.use.embed import embed

# what trains where there are no labels, or only one class
WITHOUT_LABELS = {"supsiam": "simsiam", "semi": "simsiam", "supbyol": "byol", "supcon": "simclr", "supmoco": "moco2"}
# chosen as for images
FIT_TO_VECTORS = ("train.batch_size", "train.epochs", "schedule.warmup_epochs", "pool.size", "loss.warmup")
MAX_WIDTH = 128  # of the features of vectors, as in the toy study
# nothing is held out of what `fit` gets; its run folder is temporary, so it needs no checkpoints
ALWAYS = {"data.holdout": 0.0, "train.keep": "none", "train.checkpoint_epochs": LARGEST_COUNT}
FILE, VERSION = "estimator.json", 2
FITTED = ("method_", "classes_", "n_features_in_", "feature_names_in_", "_center", "_scale", "_short_side")
COLLAPSED = "the features collapsed; try a lower learning rate, settings={'lr': ...}"


class InvalidInput(BadInput, ValueError):
    """Input that an estimator cannot use: a ValueError, as scikit-learn expects."""


class ImageEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Learns features of images, with whatever labels there are: an estimator of scikit-learn.

    `fit` and `transform` take images, an array (N, H, W[, C]) of uint8 or a list of Pillow images or paths; or a 2-D
    array. Its rows are vectors, or with `image_shape`, (H, W) or (H, W, C), the pixels of images, 0 to 255. Labels of
    `fit` are numbers or names; -1, as in sklearn.semi_supervised, '', None and NaN mean unlabelled. Without labels, or
    with a single class, the method's variant without labels is trained (`method_`).

    Settings that are not named are chosen from the data and the device, as `supancl pretrain --data` does. `settings`
    has any other field of the recipe: `{"batch_size": 64, "views.size": 64}`. `init` are weights to start from, such
    as a run folder or `timm:resnet18`. Equal `random_state`s give equal features.

    Fitted attributes: `encoder_` (a torch module), `classes_`, `method_`, `recipe_`, `n_features_in_`.

    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = load_digits(return_X_y=True)
    >>> fast = {"encoder.name": "cnn", "encoder.width": 32, "views.size": 8}
    >>> encoder = ImageEncoder(epochs=2, image_shape=(8, 8), settings=fast)
    >>> model = make_pipeline(encoder, LogisticRegression(max_iter=1000)).fit(X[:200] * 15, y[:200])
    >>> model.score(X[200:400] * 15, y[200:400]) > 0.3
    True
    """

    def __init__(
        self,
        method: str = "supsiam",
        *,
        epochs: int | None = None,
        alpha: float | None = None,
        image_shape: tuple[int, ...] | None = None,
        init: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.epochs = epochs
        self.alpha = alpha
        self.image_shape = image_shape
        self.init = init
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> ImageEncoder:
        """Train an encoder on these images; `y` are their labels."""
        with _as_value_error():
            images = self._images(X, reset=True)
            labels, classes = number_classes(y, len(images))
            self.method_ = self._method(len(classes))
            is_vectors = _is_table(images)
            requested = self._recipe(images.shape[1] if is_vectors else None)
            if is_vectors:
                scale = images.std(0)
                self._center, self._scale = images.mean(0), np.where(scale > 0, scale, 1.0)
                data = vector_data(self._standardize(images), labels, requested)
            else:
                data = cast(Data, open_given(requested, (images, labels)))
            self.encoder_, self.recipe_ = self._train(requested, data)
        self.classes_ = classes
        self._n_features_out = self.encoder_.width
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The features of images, (N, width) in float32: those of `supancl embed`."""
        check_is_fitted(self)
        with _as_value_error():
            images = self._images(X, reset=False)
            is_vectors = _is_table(images)
            if is_vectors != (self.encoder_.spec.name == "linear"):
                raise BadInput("the encoder was fitted to images or to vectors, and these are the other (image_shape)")
            if not is_vectors:
                return np.asarray(embed(self.encoder_, images))
        # in double precision a row's features do not depend on the others in its batch
        weights = self.encoder_.body.state_dict()["1.weight"].cpu().double().numpy()
        return np.asarray(self._standardize(images) @ weights.T, np.float32)

    def save(self, folder: str | Path) -> Path:
        """Write a folder that `ImageEncoder.load` reads: encoder.safetensors, which every command takes, and
        estimator.json."""
        check_is_fitted(self)
        output = Output(Path(folder), setting="folder").check()
        content = {
            "version": VERSION,
            "parameters": self.get_params(),
            "fitted": {name: getattr(self, name) for name in FITTED if hasattr(self, name)},
            "recipe": to_json(self.recipe_),
        }
        plain = json.loads(json.dumps(content, default=lambda v: v.tolist() if hasattr(v, "tolist") else os.fspath(v)))
        with output.folder() as new:
            classes, side = tuple(map(str, self.classes_)), plain["fitted"]["_short_side"]
            save_encoder(new / "encoder.safetensors", self.encoder_, classes, self.recipe_.name, side)
            write_sealed_json(new / FILE, plain)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> ImageEncoder:
        """The fitted estimator that `save` wrote to this folder."""
        file = Path(folder) / FILE
        content = read_json(file)
        if content.get("version") != VERSION or not is_as_written(content):
            raise BadInput(f"{file} is damaged, missing or of another version; give what ImageEncoder.save wrote")
        parameters, fitted = content["parameters"], content["fitted"]
        shape = parameters.get("image_shape")
        estimator = cls(**{**parameters, "image_shape": None if shape is None else tuple(shape)})
        for name, value in fitted.items():
            setattr(estimator, name, np.array(value) if isinstance(value, list) else value)
        estimator.encoder_ = load_encoder(Path(folder))
        estimator._n_features_out = estimator.encoder_.width
        estimator.recipe_ = recipe_from_json(json.dumps({"recipe": content["recipe"]}), str(file))
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = []  # features are float32
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """As scikit-learn pickles it, with the encoder on the CPU: it may be read where there is no GPU."""
        state = dict(super().__getstate__())
        if "encoder_" in state:
            state["encoder_"] = copy.deepcopy(state["encoder_"]).cpu()
        return state

    # --- input --------------------------------------------------------------------------------------------------------

    def _images(self, X: Any, reset: bool) -> Any:
        """The images as an array or a list; rows of pixels in their shape, vectors as float64."""
        if isinstance(X, (str, Path)):
            raise BadInput(f"{str(X)!r} is not a list of images; list its files, or use supancl.pretrain(data=...)")
        X = as_array(list(X) if isinstance(X, Iterator) else X)
        if _is_list_of_images(X):
            return list(X)
        if len(getattr(X, "shape", (0, 0))) > 2:
            array = np.asarray(X)
            if reset:
                self.n_features_in_ = int(np.prod(array.shape[1:]))
            if len(array) < 2 and reset:
                raise BadInput(f"{len(array)} image(s), n_samples={len(array)}; training needs at least 2")
            return array
        rows = validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)
        return rows if self.image_shape is None else as_images(rows, self.image_shape)

    def _standardize(self, rows: np.ndarray) -> np.ndarray:
        """Centred, because a masked value becomes zero; scaled, so that units do not matter."""
        return np.asarray((rows - self._center) / self._scale)

    # --- training -----------------------------------------------------------------------------------------------------

    def _method(self, classes: int) -> str:
        if self.method not in METHODS:
            raise BadInput(f"unknown method {self.method!r}{did_you_mean(str(self.method), METHODS)}")
        if classes < 2 and self.method == "crossentropy":
            raise BadInput("crossentropy needs labels of at least two classes; give them as y, or choose simsiam")
        return self.method if classes > 1 else WITHOUT_LABELS.get(self.method, self.method)

    def _recipe(self, vector_size: int | None) -> Recipe:
        base = recipe(f"auto.{self.method_}") if vector_size is None else vector_recipe(self.method_, vector_size)
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        alpha = self.alpha if self.method_ == self.method else None  # the variant without labels has no such term
        given = {"train.epochs": self.epochs, "loss.alpha": alpha, "train.monitor_every": None if self.verbose else 0}
        chosen = {name: value for name, value in given.items() if value is not None}
        return with_settings(base, {**ALWAYS, "train.seed": seed, **chosen, **(self.settings or {})})

    def _train(self, requested: Recipe, data: Data) -> tuple[Encoder, Recipe]:
        with TemporaryDirectory(prefix="supancl-") as folder:
            try:
                run = pretrain(requested, data, Path(folder) / "run", init=self.init, verbose=bool(self.verbose))
                self._short_side = data.train.median_short_side()
            except Interrupted as error:
                if error.signal_number != signal.SIGINT:
                    raise
                raise KeyboardInterrupt from None  # its folder is temporary, so there is nothing to continue
            if run.collapsed:
                warnings.warn(f"{self.method_}: {COLLAPSED}", ConvergenceWarning, stacklevel=3)
            return run.encoder, run.recipe


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        raise error if isinstance(error, ValueError) else InvalidInput(str(error)) from None


def _is_table(images: Any) -> bool:
    """Whether these are vectors, not images."""
    return isinstance(images, np.ndarray) and images.ndim == 2


def _is_list_of_images(X: Any) -> bool:
    """Whether this is a list, an array or a column of Pillow images, paths or arrays, not a table of numbers."""
    if hasattr(X, "shape") or hasattr(X, "__array__"):
        return len(getattr(X, "shape", ())) == 1 and getattr(X.dtype, "kind", "O") in "OUS"
    first: Any = next(iter(X), None) if hasattr(X, "__iter__") else X
    return isinstance(first, (str, Path, Image.Image)) or np.ndim(first) >= 2


def as_images(rows: np.ndarray, image_shape: tuple[int, ...]) -> np.ndarray:
    """Rows of pixels as images (N, H, W, C) of uint8."""
    if np.ndim(image_shape) != 1 or len(image_shape) not in (2, 3) or rows.shape[1] != int(np.prod(image_shape)):
        raise BadInput(f"image_shape = {image_shape}: rows have {rows.shape[1]} values; give (H, W) or (H, W, C)")
    if rows.min() < 0 or rows.max() > 255 or (rows != np.round(rows)).any():
        raise BadInput(f"pixels from {rows.min():g} to {rows.max():g}: they must be whole numbers from 0 to 255")
    return rows.astype(np.uint8).reshape(len(rows), *image_shape)


def number_classes(y: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels as 0, 1, ... and -1, and the sorted classes; -1, '', None and NaN are no label, fractions are refused.

    >>> number_classes(["b", "", "a", "b"], 4)
    (array([ 1, -1,  0,  1]), array(['a', 'b'], dtype='<U1'))
    """
    if y is None:
        return np.full(count, -1), np.empty(0, object)
    labels = as_label_array(column_or_1d(keep_missing(y), warn=True))
    if len(labels) != count:
        raise BadInput(f"{len(labels)} labels for {count} images; give one per image")
    if labels.dtype.kind == "f":
        raise BadInput(f"y: {labels[labels % 1 != 0][0]:g} is no class; give whole numbers or names, or no y")
    is_missing = np.isin(labels, ["", "-1"]) if labels.dtype.kind == "U" else labels == -1
    numbered = np.full(count, -1)
    classes, numbered[~is_missing] = np.unique(labels[~is_missing], return_inverse=True)
    return numbered, classes


# --- vectors ----------------------------------------------------------------------------------------------------------


def vector_recipe(method: str, size: int) -> Recipe:
    """The recipe for vectors: the toy study's encoder and masks (App. B), with the heads and rates for the digits."""
    base = recipe(f"digits.{method}")
    chosen = set(FIT_TO_VECTORS) & set(base.fields()) - ({"pool.size"} if base.pool.kind == "none" else set())
    return replace(
        base,
        name=f"vectors.{method}",
        paper="not in the paper: the toy study's encoder and masks",
        data=DataSpec(),
        views=Masks(),
        encoder=EncoderSpec("linear", channels=1, size=size, width=min(MAX_WIDTH, size), mean=(0.0,), std=(1.0,)),
        sources={**base.sources, **dict.fromkeys(sorted(chosen), TO_BE_CHOSEN)},
    )


def vector_data(rows: np.ndarray, labels: np.ndarray, requested: Recipe) -> Data:
    """Vectors as the data of a run."""
    store = ArrayImages(torch.from_numpy(rows.astype(np.float32)))
    names = [f"rows[{i}]" for i in range(len(rows))]
    classes = tuple(map(str, range(int(labels.max(initial=-1)) + 1)))
    spec = replace(requested.data, source=FROM_PYTHON)
    listing = list_stored(store, Labels.of(torch.from_numpy(labels)), {"train": names}, classes, "the rows")
    return prepare_data(load(listing, 1, spec), spec)
