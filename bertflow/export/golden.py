"""Golden vectors, what an exported encoder must answer; and why a server answers otherwise.

    right           within the tolerance                    cut elsewhere    short sentences right, longer ones not
    half precision  off by what half precision costs        a mistake        a suspect of the golden file fits
    roughly right   by more than that, as with int8         unit length      any of these, after normalizing

Each explanation is tried. The one that leaves the smallest distance is named, if that distance is small.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bertflow.array_types import Bools, Float32, Float64
from bertflow.calibrated import RECORD
from bertflow.encoder.folders import RECORD_FILE
from bertflow.errors import DataError, UsageError
from bertflow.export.client import Answers, embed_remotely, listed_model
from bertflow.export.onnx_encoder import GRAPH, OnnxEncoder
from bertflow.export.st_folder import load_sentence_transformer
from bertflow.opening import load
from bertflow.records import read_record, write_record
from bertflow.results import AbstractResult

GOLDEN = "golden.json"
SUSPECT_ROWS = (*range(8), *range(26, 32))
"""Sentences for which the mistakes are kept: the first 8 and the 6 long ones."""
FITS = 0.05
"""Largest distance, as a share of a vector's length, that an explanation of a wrong vector may leave."""
AT_MOST = 0.5
"""Largest such distance where half precision costs more than that."""
HALF_PRECISION = 3.0
"""Factor on what half precision was measured to cost, up to which a distance is called half precision."""


@dataclass(frozen=True)
class Golden:
    """What an exported encoder must answer; ``golden.json`` holds the same.

    Attributes:
        format: Version of the file's form.
        sentences: 32 sentences, as they are sent, without the prompt.
        tokens: Tokens of each sentence with its prompt and special tokens, before it is truncated.
        vectors: A row for each sentence.
        suspects: A mistake in plain words -> what it would answer for ``SUSPECT_ROWS``.
        precision: A dtype -> its median distance from the encoder's own, as a share of a row's length.
        tolerance: Accepted distance, as a share of a row's length.
        describe: ``describe()`` of the encoder.
    """

    format: Literal[1]
    sentences: list[str]
    tokens: list[int]
    vectors: list[list[float]]
    suspects: dict[str, list[list[float]]]
    precision: dict[str, float]
    tolerance: float
    describe: dict[str, Any]

    def __post_init__(self) -> None:
        widths = [{len(row) for row in rows} for rows in (self.vectors, *self.suspects.values())]
        if not len(self.sentences) == len(self.tokens) == len(self.vectors) or any(len(one) != 1 for one in widths):
            raise DataError("its vectors should be one for each sentence, all of one width. Export the encoder again.")
        if missing := {"encoder", "pooling", "max_length"} - self.describe.keys():
            raise DataError(f"its description has no {min(missing)}. Export the encoder again.")

    def write(self, folder: Path) -> None:
        """Write ``golden.json`` into a folder."""
        write_record(folder / GOLDEN, vars(self), indent=None)

    @classmethod
    def read(cls, path: str | Path) -> "Golden":
        """Read a golden file, or the one in an exported folder.

        Raises:
            DataError: If there is none, or it is damaged.
        """
        path = Path(path)
        path = path / GOLDEN if path.is_dir() else path
        return read_record(path, cls, "file of golden vectors", "Write it again with `bertflow export`.")


@dataclass(frozen=True, repr=False)
class Diagnosis(AbstractResult):
    """What the comparison with the golden vectors found.

    Attributes:
        right: Whether the vectors are the golden ones.
        text: What is wrong, in plain words.
        distance: Median distance from the golden vectors, as a share of their length; infinite for vectors of another
            width, or with NaN or infinity.
        vectors: Number of vectors that were compared.
        tolerance: Accepted distance, as a share of a vector's length.
        golden: Description of the encoder that the golden vectors are from.
        where: The server or folder.
        left_out: Sentences that the server refused because they are long, and its words; empty if there are none.
    """

    right: bool
    text: str
    distance: float
    vectors: int
    tolerance: float
    golden: Mapping[str, Any]
    where: str
    left_out: str = ""

    title: ClassVar[str] = "Comparison with the golden vectors"

    def parts(self) -> Iterator[str]:
        """What was compared; and that it is right, if it is."""
        what = self.golden
        off = f"{self.distance:.1e} of their length" if np.isfinite(self.distance) else "more than can be said"
        calibrator = what.get("calibrator", "as it comes")
        yield f"golden    {what['encoder']}, {what['pooling']}, {calibrator}, max_length={what['max_length']}"
        accepted = f"{self.tolerance:.0e} is accepted"
        yield f"compared  {self.vectors} vectors of {self.where}: off by {off} (median), {accepted}"
        if self.left_out:
            yield f"left out  {self.left_out}"
        if self.right:
            yield f"right     {self.text}"

    def missed(self) -> str:
        """What is wrong, if something is."""
        return "" if self.right else self.text

    def as_dict(self) -> dict[str, Any]:
        """Everything; the distance is null where it is infinite."""
        return {**super().as_dict(), "distance": self.distance if np.isfinite(self.distance) else None}


def compare_folder(golden: str | Path, folder: Path, normalized: bool) -> Diagnosis:
    """Compare what a folder answers, run here, with the golden vectors."""
    kept = Golden.read(golden)
    return explain(kept, embed_locally(folder, kept.sentences), normalized, str(folder))


def compare_server(
    golden: str | Path, url: str, model_name: str | None, secret: str | None, normalized: bool, batch: int
) -> Diagnosis:
    """Compare what a server answers with the golden vectors."""
    kept = Golden.read(golden)
    answers = embed_remotely(url, kept.sentences, model_name or listed_model(url, secret), secret, batch)
    left_out, wrong = _refused(kept, answers)
    found = explain(kept, answers.vectors, normalized, url, answers.rows)
    if found.right and wrong:
        found = replace(found, right=False, text=wrong)
    return replace(found, left_out=left_out)


def _refused(kept: Golden, answers: Answers) -> tuple[str, str]:
    """What the server refused, in words; and what is wrong with that, if it is.

    Raises:
        UsageError: If it refused sentences that are not longer than those that it took.
    """
    if not answers.refusal:
        return "", ""
    tokens, limit = np.array(kept.tokens), kept.describe["max_length"]
    least, n = np.delete(tokens, answers.rows).min(), len(tokens) - len(answers.rows)
    if least <= tokens[answers.rows].max():
        raise answers.refusal
    left_out = f"{n} sentences of {least} tokens or more, which the server refuses: {answers.refusal}"
    wrong = f"The server differs: it refuses a sentence of {least} tokens, and the encoder reads {limit}."
    return left_out, wrong if least <= limit else ""


def embed_locally(folder: Path, sentences: list[str]) -> Float32:
    """The embeddings of a folder, run by what it was written for; the first kind that fits."""
    ours, theirs = partial(load, device="cpu"), partial(load_sentence_transformer, device="cpu")
    kinds: dict[str, Any] = {str(GRAPH): OnnxEncoder, "modules.json": theirs, RECORD: ours, RECORD_FILE: ours}
    for name, opened in kinds.items():
        if (folder / name).is_file():
            return np.asarray(opened(folder).encode(sentences), np.float32)
    raise UsageError(f"{folder} cannot be run here: it holds none of {', '.join(kinds)}. Export it again.")


def distances(got: Float32, wanted: Float32) -> Float64:
    """Distance of each row from the wanted one (n,), as a share of its length; infinite where shapes differ."""
    if got.shape != wanted.shape:
        return np.full(len(wanted), np.inf)
    wanted = wanted.astype(np.float64)
    length = np.linalg.norm(wanted, axis=1).clip(min=np.finfo(np.float64).tiny)
    found: Float64 = np.linalg.norm(got.astype(np.float64) - wanted, axis=1) / length
    return found


def explain(
    golden: Golden, got: Float32, normalized: bool = False, where: str = "", rows: Sequence[int] | None = None
) -> Diagnosis:
    """Compare vectors (n, any width) of the golden sentences, in their order, with the golden ones.

    Args:
        golden: The right vectors.
        got: The vectors of the server.
        normalized: Whether vectors of unit length are expected.
        where: The server or folder.
        rows: The numbers of the sentences that the vectors are of; all by default.
    """
    if bad := int((~np.isfinite(got)).any(axis=1).sum()):
        text = f"The server differs: {bad} of {len(got)} vectors hold NaN or infinity."
        return Diagnosis(False, text, np.inf, len(got), golden.tolerance, golden.describe, where)
    if rows is not None and len(rows) < len(golden.sentences):  # NaN stands for what is not compared
        got, taken = np.full((len(golden.sentences), got.shape[1]), np.nan, np.float32), got
        got[rows] = taken
    wanted = np.array(golden.vectors, np.float32)
    off = distances(got, _unit(wanted) if normalized else wanted)
    compared: Bools = np.isfinite(got[:, 0])
    distance, right = _median(off), bool((off[compared] <= golden.tolerance).all())
    text = "The vectors are the golden ones." if right else _cut(golden, off, compared)
    if not text:
        text, distance = _mistake(golden, got, normalized, distance)
    return Diagnosis(right, text, distance, int(compared.sum()), golden.tolerance, golden.describe, where)


def _median(off: Float64) -> float:
    """The median distance of what is compared."""
    off = off[~np.isnan(off)]
    return float(np.median(off)) if len(off) else np.inf


def _mistake(golden: Golden, got: Float32, normalized: bool, distance: float) -> tuple[str, float]:
    """What is wrong with all vectors, and the distance to name."""
    left, best = min(_explanations(golden, got, normalized), key=itemgetter(0))
    half = max(golden.precision.values())
    if best and left <= min(AT_MOST, max(FITS, HALF_PRECISION * half)):
        lower = left > golden.tolerance
        how = f" (which leaves {left:.1e} of a vector's length: it computes in lower precision, too)" if lower else ""
        return f"The server differs: {best}{how}.", distance
    if distance <= HALF_PRECISION * half:
        return f"The server computes in lower precision{_like(golden, distance)}.", distance
    if not best and left <= AT_MOST:
        return f"The server computes the right embeddings roughly{_like(golden, distance)}. Is it int8?", left
    width = len(golden.vectors[0])
    if got.shape[1] != width:
        wide = f"its vectors are {got.shape[1]} wide, {width} were expected"
        why = f"{wide}, and none of the usual mistakes explains them"
        return f"The server differs: {why}. Is it another model?", distance
    closest = f"the closest ({best or 'the right vectors'}) leaves {left:.2f} of a vector's length"
    why = f"none of {len(golden.suspects)} usual mistakes explains it: {closest}"
    return f"The server differs, and {why}. Is it another model?", distance


def _explanations(golden: Golden, got: Float32, normalized: bool) -> Iterator[tuple[float, str]]:
    """The median distance that each explanation leaves, and its words; those of the wanted length come first."""
    length = "leaves vectors at a length of their own"
    if not normalized:
        length = "scales vectors to unit length (cosines are right, distances are not)"
    for unit in (normalized, not normalized):
        for text, rows in (("", golden.vectors), *golden.suspects.items()):
            wanted = np.array(rows, np.float32)
            answered = got[list(SUSPECT_ROWS)] if text else got
            words = text if unit == normalized else f"{text}, and {length}" if text else f"it {length}"
            yield _median(distances(answered, _unit(wanted) if unit else wanted)), words


def _cut(golden: Golden, off: Float64, compared: Bools) -> str:
    """What is wrong, in words, if only longer sentences are wrong, as when they are cut elsewhere; else empty."""
    tokens, right = np.array(golden.tokens)[compared], off[compared] <= golden.tolerance
    if not right.any() or tokens[~right].min() <= tokens[right].max():
        return ""
    longest, shortest, limit = tokens[right].max(), tokens[~right].min(), golden.describe["max_length"]
    if shortest > limit:
        reads = f"it reads more than max_length={limit} tokens of a long sentence"
        return f"The server differs: {reads}; up to {longest} tokens its vectors are right."
    cuts = f"it cuts long sentences somewhere from {longest} to {shortest - 1} tokens"
    return f"The server differs: {cuts}, and not at max_length={limit}."


def _like(golden: Golden, distance: float) -> str:
    close = min(golden.precision, key=lambda dtype: abs(np.log(golden.precision[dtype] / distance)))
    return f": its vectors are off by {distance:.1e} of their length, {close} costs {golden.precision[close]:.1e}"


def _unit(x: Float32) -> Float32:
    return x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
