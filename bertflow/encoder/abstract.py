"""What an encoder is: it encodes, it can describe itself, and it knows whether a calibrator follows it.

``SentenceEncoder`` is what the rest of the package asks for. ``AbstractEncoder`` gives everything but ``dim``,
``describe`` and the embeddings themselves: derive from it to add a kind of encoder.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np

from bertflow.array_types import Float32, Float64, Hashes, Int64
from bertflow.encoder.identity import Identity
from bertflow.encoder.options import Role as Role
from bertflow.errors import BadRowsError, DataError, MissingAttributeError, UsageError, shown
from bertflow.files import atomic_folder
from bertflow.moments import require_finite
from bertflow.registry import as_texts
from bertflow.similarity import COSINE, unit_rows

Sentences = str | Iterable[str]

HINTS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "convert_to_numpy": ((True,), "Embeddings are a numpy array, or one tensor with convert_to_tensor=True."),
    "prompt": ((None,), "A prompt belongs to the encoder. Open it with prompt=..., or use encode_query."),
    "prompt_name": ((None,), "A prompt belongs to the encoder. Open it with prompt=NAME, or use encode_query."),
    "device": ((None,), "A device belongs to the encoder. Open it with device=..."),
    "precision": (("float32",), "Embeddings are float32. See quantize_embeddings of sentence-transformers."),
    "output_value": (("sentence_embedding",), "Only sentence embeddings are given. For tokens see bertflow tokens."),
    "truncate_dim": ((None,), "Use Whitening(n_components=k): its first directions hold the most variance."),
    **dict.fromkeys(("pool", "chunk_size"), ((None,), "Use bertflow embed, whose store several processes can fill.")),
}
"""Options of sentence-transformers' ``encode``: the values that change nothing here, and the hint for others."""
OF_RAW = ("device", "tokenizer", "prompts")
"""Attributes of sentence-transformers' encoders that a calibrated encoder has from its raw one."""
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("to", "cuda", "cpu"), 'A device belongs to the encoder. Open it with device="cuda".'),
    **dict.fromkeys(("encode_multi_process", "start_multi_process_pool", "stop_multi_process_pool"), HINTS["pool"][1]),
    "save_pretrained": 'Use save("folder"), or export_encoder(encoder, "folder", "sentence-transformers").',
    "push_to_hub": 'Use export_encoder(encoder, "folder", "sentence-transformers", push="owner/name").',
    "fit": "An encoder is frozen. Calibrate it with bertflow.fix or bertflow.train, or use bertflow.finetune.",
}
"""Methods of sentence-transformers' encoders, and what is used here instead."""


KNOWN = ("progress", "batch_size", "show_progress_bar", "normalize_embeddings", "convert_to_tensor")
"""Options of ``encode``."""
REPAIR = "Leave the sentence out, or look for an overflow in the encoder."


@runtime_checkable
class SentenceEncoder(Protocol):
    """Anything that turns sentences into embeddings: raw, calibrated or of your own (see ``AbstractEncoder``).

    Attributes:
        dim: Width of an embedding.
        calibrator: What maps the embeddings of ``raw`` to those of this encoder, an ``AbstractCalibrator``; None for a
            raw encoder.
        recipe: The arguments with which ``bertflow.load`` opens it again, ready for JSON; None if it cannot.
        role: What ``encode`` takes sentences for: documents; queries, for an encoder that was made for queries.
    """

    dim: int
    calibrator: Any = None
    recipe: dict[str, Any] | None = None
    role: Role = "document"

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything that decides the embeddings, ready for JSON: ``encoder`` is its name, the rest are facts."""

    @abstractmethod
    def encode(self, sentences: Sentences, progress: bool | None = None, **options: Any) -> Float32:
        """One embedding a sentence, in the order given; (n, dim). Of a single string one vector (dim,)."""

    @abstractmethod
    def encode_query(self, sentences: Sentences, progress: bool | None = None, **options: Any) -> Float32:
        """Embed questions that are compared with documents: ``encode`` with the prompt for queries."""

    def encode_document(self, sentences: Sentences, progress: bool | None = None, **options: Any) -> Float32:
        """Embed documents, which an encoder without prompts reads as any sentence."""
        return self.encode(sentences, progress, **options)

    @property
    def raw(self) -> "SentenceEncoder":
        """The encoder before the calibrator; itself if there is none."""
        return self

    @property
    def identity(self) -> Identity:
        """Everything that decides the embeddings."""
        return Identity.from_record(self.describe())

    @property
    def has_roles(self) -> bool:
        """Whether a query has another embedding than a document of the same words."""
        return "query_prompt" in self.identity.facts

    def calibrate(self, x: Float32, role: Role = "document") -> Float32:
        """What this encoder makes of embeddings by ``raw``, which are finite: nothing else, without a calibrator."""
        require_finite(x)
        return x

    def fitted_hashes(self) -> Hashes | None:
        """Hashes (``bertflow.text_keys``) of the text it was fitted on; empty if none was, None if unknown."""
        return np.empty(0, dtype=np.uint64)

    def forget_text(self) -> Self:
        """Forget the hashes of the text it was fitted on, so no saved file holds them; ``seen`` becomes unknown."""
        return self

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``bertflow.load`` opens again, whole or not at all.

        Raises:
            DataError: If the encoder is of a kind that cannot be written.
        """
        with atomic_folder(folder) as aside:
            self.write(aside)

    def write(self, folder: Path) -> None:
        """Do what ``save`` does, in an existing folder."""
        raise DataError(
            f"Only a TransformerEncoder can be saved, this one is a {type(self).__name__}. Save the calibrator alone "
            "with calibrator.save(folder)."
        )


class AbstractEncoder(SentenceEncoder):
    """A ``SentenceEncoder`` without ``dim``, ``describe`` and ``_encode``, which a subclass defines."""

    @abstractmethod
    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        """The embeddings (n, dim) of texts, also of none.

        Args:
            sentences: Texts, already checked.
            role: What they are.
            progress: Whether to show a bar; None where there is a terminal or a notebook.
            batch_size: At most this many sentences at a time; None leaves it to the encoder.
        """

    def __repr__(self) -> str:
        """Model, pooling and width; nothing is computed for it."""
        given = [(key, value) for key, value in (self.recipe or {}).items() if value not in (None, "", "float32")]
        shown = [repr(value) if key == "model" else f"{key}={value!r}" for key, value in given if key != "device"]
        return f"{type(self).__name__}({', '.join([*shown, f'dim={self.dim}'])})"

    if not TYPE_CHECKING:  # else mypy would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name in OF_RAW and self.raw is not self:
                return getattr(self.raw, name)
            raise MissingAttributeError(f"{type(self).__name__} has no {name}. {ELSEWHERE.get(name, '')}".rstrip())

    @property
    def max_seq_length(self) -> int:
        """Longest sentence in tokens, special ones included, as sentence-transformers calls it."""
        raw: Any = self.raw
        return raw.spec.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        raise UsageError(f"The length belongs to the encoder. Open it with max_length={length!r}.")

    def get_sentence_embedding_dimension(self) -> int:
        """``dim``, as sentence-transformers calls it."""
        return self.dim

    def encode(self, sentences: Sentences, progress: bool | None = None, **options: Any) -> Float32:
        """One embedding a sentence.

        Args:
            sentences: Any iterable of texts, also an empty one; or a single text.
            progress: Show a bar; by default in a terminal or a notebook, for work that takes over a second.
            options: Options of sentence-transformers: ``batch_size`` limits the sentences that are run at a time,
                ``show_progress_bar`` is ``progress``, ``normalize_embeddings`` scales rows to length one,
                ``convert_to_tensor`` gives a tensor on the encoder's device. Others are answered with a hint.

        Returns:
            (n, dim), float32, in the order given; (dim,) for a single text.

        Raises:
            UsageError: For an option that cannot be used, or a pooling that lacks its token counts.
            DataError: If something is not text, or an embedding is not finite; the message names the sentence.
        """
        return self._answer(self.role, sentences, progress, **options)

    def encode_document(self, sentences: Sentences, progress: bool | None = None, **options: Any) -> Float32:
        """One embedding a text, for texts that are compared with questions: with the prompt for documents."""
        return self._answer("document", sentences, progress, **options)

    def encode_query(self, sentences: Sentences, progress: bool | None = None, **options: Any) -> Float32:
        """Embed questions that are compared with documents: ``encode`` with the prompt for queries."""
        return self._answer("query", sentences, progress, **options)

    def similarity(self, a: Float32, b: Float32) -> Float64:
        """Cosine of each row of ``a`` with each row of ``b``; (n, m)."""
        return COSINE.matrix(np.atleast_2d(a), np.atleast_2d(b))

    def similarity_pairwise(self, a: Float32, b: Float32) -> Float64:
        """Cosine of each row of ``a`` with the same row of ``b``; (n,)."""
        return COSINE.paired(np.atleast_2d(a), np.atleast_2d(b))

    def _answer(
        self,
        role: Role,
        sentences: Sentences,
        progress: bool | None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool | None = False,
        **others: Any,
    ) -> Any:
        for name, value in others.items():
            if name not in HINTS:
                raise UsageError(f"encode has no option {name!r}. Known: {', '.join((*KNOWN, *HINTS))}.")
            harmless, hint = HINTS[name]
            if value not in harmless:
                raise UsageError(f"encode cannot use {name}={value!r}. {hint}")
        bar = progress if show_progress_bar is None else show_progress_bar
        if bar not in (None, True, False):
            raise UsageError(
                f"The second argument of encode is progress (True, False or None), got {bar!r}. Name every other "
                "option, as batch_size=32. For a prompt, use encode_query, or open the encoder with prompt=..."
            )
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
        one = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else as_texts(sentences)
        check_sentences(texts)
        x = self._encode(texts, role, bar, batch_size)
        require_finite_rows(x, range(len(texts)), REPAIR, texts=texts)
        x = unit_rows(x).astype(np.float32) if normalize_embeddings and len(x) else x
        x = x[0] if one else x
        if not convert_to_tensor:
            return x
        import torch  # what options an encoder takes is known without it

        return torch.from_numpy(x).to(getattr(self, "device", "cpu"))


def encode_as(
    encoder: SentenceEncoder, role: Role | None, sentences: Sequence[str], progress: bool | None = None, **options: Any
) -> Float32:
    """Embeddings (n, dim) of sentences by what they are; None: what the encoder takes them for."""
    by_role = {None: encoder.encode, "document": encoder.encode_document, "query": encoder.encode_query}
    return by_role[role](sentences, progress, **options)


def is_encoder(given: object) -> bool:
    """Whether this is a ``SentenceEncoder``."""
    return all(hasattr(type(given), name) for name in ("encode", "encode_query", "raw", "identity", "describe"))


def require_finite_rows(
    x: Float32, owners: range | Int64, repair: str, how: str = "", texts: Sequence[str] = ()
) -> None:
    """Refuse embeddings that are not finite.

    Args:
        x: Embeddings (n, dim).
        owners: The sentence of each.
        repair: What the user can do, as a sentence.
        how: How they were made, for the message.
        texts: The sentences, for the message.

    Raises:
        BadRowsError: If one is not finite; the message names the first sentence.
    """
    if (finite := np.isfinite(x).all(-1)).all():
        return
    bad = np.asarray(owners)[~finite].tolist()
    one, some = f"that of sentence {bad[0]}", f"{len(bad)} of {len(x)} are not"
    which = f"{one}, {shown(texts[bad[0]])}, is not" if texts else f"{some}, {one} the first"
    reasons = dict.fromkeys(bad, f"the embedding is not finite. {repair}")
    raise BadRowsError(reasons, f"Embeddings must be finite, but {which}{how}. {repair}")


def check_sentences(sentences: Sequence[str]) -> None:
    """Refuse what is not a list of texts.

    Raises:
        UsageError: If a single string is given.
        DataError: If something in the list is not text; the message gives its index.
    """
    if isinstance(sentences, str):
        raise UsageError("Sentences must be a list of texts, got a single text. Put it in a list: [sentence].")
    for row, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise DataError(
                f"Sentence {row} must be text, got {type(sentence).__name__}. Leave it out, or read it as text."
            )
