"""Text to embeddings as a scikit-learn transformer: the first step of a pipeline that ends in a classifier.

    make_pipeline(SentenceVectorizer("runs/mine"), LogisticRegression()).fit(texts, labels)

It holds only parameters, so it can be cloned, searched over and pickled; the weights stay in their folder and are
opened where they are needed. With a ``calibrator``, a clone of it is fitted to the training text of each fold.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import InputTags, Tags
from sklearn.utils.validation import check_is_fitted

from bertflow.array_types import Float32
from bertflow.calibration.base import AbstractCalibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.opening import load


@functools.lru_cache(maxsize=2)
def _opened(model: str, device: str, pooling: str | None, max_length: int | None) -> SentenceEncoder:
    """The clones of a grid search share one encoder."""
    return load(model, device=device, pooling=pooling, max_length=max_length)


@dataclass(eq=False, repr=False)
class SentenceVectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Embeds text.

    Args:
        model: A hub id, or a folder of an encoder, a calibrated encoder, or a run.
        pooling: Pooling of a raw encoder; by default its own.
        max_length: Longest sentence of a raw encoder, in tokens; by default its own.
        calibrator: A clone of it is fitted to the embeddings of the training text; none by default.
        device: Device on which the encoder runs.

    Attributes:
        calibrator_: The fitted calibrator, or None.
        n_features_out_: Width of an embedding.
    """

    model: str
    pooling: str | None = None
    max_length: int | None = None
    calibrator: AbstractCalibrator | None = None
    device: str = "auto"

    @property
    def encoder(self) -> SentenceEncoder:
        """The encoder, opened."""
        return _opened(str(self.model), self.device, self.pooling, self.max_length)

    def fit(self, X: Iterable[str], y: Any = None) -> Self:
        """Open the encoder and fit the calibrator, if there is one; ``y`` is ignored.

        Raises:
            DataError: If ``X`` is not a sequence of texts.
        """
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Iterable[str], y: Any = None, **_: Any) -> NDArray[Any]:
        """``fit`` and ``transform`` in one pass of the encoder."""
        x = self._embedded(X)
        self.calibrator_ = None if self.calibrator is None else clone(self.calibrator).fit(x)
        z = x if self.calibrator_ is None else self.calibrator_.transform(x)
        self._n_features_out = self.n_features_out_ = z.shape[1]
        return z

    def transform(self, X: Iterable[str]) -> NDArray[Any]:
        """One embedding a text; (n, n_features_out_), float32."""
        check_is_fitted(self, "n_features_out_")
        x = self._embedded(X)
        return self.calibrator_.transform(x) if self.calibrator_ is not None and len(x) else x

    def _embedded(self, X: Iterable[str]) -> Float32:
        """The raw embeddings of a list, an array or a pandas column of texts."""
        if isinstance(X, str):
            raise DataError("Texts should be a list, got a single text. Put it in a list.")
        return self.encoder.encode(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = InputTags(one_d_array=True, two_d_array=False, string=True)
        return tags
