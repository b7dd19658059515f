"""Word vectors in the place of a transformer: the poolings of one file, beside which baselines can stand."""

from pathlib import Path

from bertflow.encoder.word_vectors import WordVectorEncoder

SUFFIXES = (".vec", ".txt", ".gz")
"""How the name of a file of word vectors ends."""


class WordPass:
    """The two poolings of a file of word vectors, as ``SharedPass`` is for those of a transformer.

    Args:
        path: The file.
    """

    own_pooling = "mean"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.own = WordVectorEncoder(path)
        self._encoders = {self.own_pooling: self.own}

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> WordVectorEncoder:
        """The encoder with ``pooling``: mean or sif.

        Args:
            pooling: Its name.
            corpus: Whose words ``sif`` counts.

        Raises:
            UnknownNameError: For another one.
        """
        if pooling not in self._encoders:
            encoder = WordVectorEncoder(self._path, pooling)
            self._encoders[pooling] = encoder if corpus is None else encoder.count_words(corpus)
        return self._encoders[pooling]
