"""Word vectors in the place of a transformer: the poolings of one file, beside which baselines can stand."""

from bertflow.encoder.word_vectors import WordVectorEncoder


class WordPass:
    """The two poolings of a file of word vectors, as ``SharedPass`` is for those of a transformer.

    Args:
        own: The encoder that was opened.
    """

    def __init__(self, own: WordVectorEncoder) -> None:
        self.own = own
        self.own_pooling = own.recipe["pooling"]
        self._encoders = {self.own_pooling: own}

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> WordVectorEncoder:
        """The encoder with ``pooling``: mean or sif.

        Args:
            pooling: Its name.
            corpus: Whose words ``sif`` counts.

        Raises:
            UnknownNameError: For another one.
        """
        if pooling not in self._encoders:
            encoder = WordVectorEncoder(self.own.recipe["model"], pooling)
            self._encoders[pooling] = encoder if corpus is None else encoder.count_words(corpus)
        return self._encoders[pooling]
