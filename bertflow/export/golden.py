"""Golden vectors, what an exported encoder must answer; and ``diagnose``, which says why a server answers otherwise.

    right           within the tolerance                    cut elsewhere    short sentences right, longer ones not
    half precision  off by what half precision costs        a mistake        a suspect of the golden file fits
    roughly right   by more than that, as with int8         unit length      any of these, after normalizing

Each explanation is tried. The one that leaves the smallest distance is named, if that distance is small.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from bertflow.encoder.abstract import Float32
from bertflow.errors import DataError, UsageError
from bertflow.files import write_json
from bertflow.opening import load
from bertflow.records import parse_record, read_record
from bertflow.results import AbstractResult

GOLDEN = "golden.json"
SUSPECT_ROWS = (*range(8), *range(26, 32))
"""Sentences for which the mistakes are kept: the first 8 and the 6 long ones."""
PATH = "/v1/embeddings"
IS_IT = "Is it an embedding server?"
"""What the user can check about an answer without embeddings."""
TIMEOUT = 60.0
"""Seconds that one answer may take."""
FITS = 0.05
"""Largest distance, as a share of a vector's length, that an explanation of a wrong vector may leave."""
AT_MOST = 0.5
"""The same where half precision costs more than that."""
HALF_PRECISION = 3.0
"""Up to this many times what half precision was measured to cost is called half precision."""


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

    def write(self, folder: Path) -> None:
        """Write ``golden.json`` into a folder."""
        write_json(folder / GOLDEN, asdict(self))

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
        distance: Median distance from the golden vectors, as a share of their length; infinite for another width.
        vectors: Number of vectors that were compared.
        tolerance: Accepted distance, as a share of a vector's length.
        golden: Description of the encoder that the golden vectors are from.
        where: The server or folder.
    """

    right: bool
    text: str
    distance: float
    vectors: int
    tolerance: float
    golden: Mapping[str, Any]
    where: str

    title: ClassVar[str] = "Comparison with the golden vectors"

    def parts(self) -> Iterator[str]:
        """What was compared; and that it is right, if it is."""
        what = self.golden
        off = f"{self.distance:.1e} of their length" if np.isfinite(self.distance) else "another width"
        calibrator = what.get("calibrator", "as it comes")
        yield f"golden    {what['encoder']}, {what['pooling']}, {calibrator}, max_length={what['max_length']}"
        accepted = f"{self.tolerance:.0e} is accepted"
        yield f"compared  {self.vectors} vectors of {self.where}: off by {off} (median), {accepted}"
        if self.right:
            yield f"right     {self.text}"

    def missed(self) -> str:
        """What is wrong, if something is."""
        return "" if self.right else self.text

    def as_dict(self) -> dict[str, Any]:
        """Everything; the distance is null for another width."""
        return {**super().as_dict(), "distance": self.distance if np.isfinite(self.distance) else None}


def diagnose(
    golden: str | Path,
    url: str | None = None,
    model: str | Path | None = None,
    model_name: str = "bertflow",
    key: str | None = None,
    normalized: bool = False,
    batch: int = 8,
) -> Diagnosis:
    """Compare what a server, or a folder on this machine, answers to 32 golden sentences with what it should answer.

    What is wrong is named: calibrator left out, another pooling, half precision, unit length, another max_length,
    prompt left out. The exit code is 0 if everything is right, and 4 if something differs.

    Args:
        golden: An exported folder, or its golden.json.
        url: Address of a server with an OpenAI-compatible /v1/embeddings.
        model: Instead of a server: an exported or saved folder, to be run here.
        model_name: Name of the model on the server.
        key: Environment variable that holds the server's key.
        normalized: Whether vectors of unit length are expected.
        batch: Number of sentences in a request.

    Raises:
        UsageError: If not exactly one of ``url`` and ``model`` is given, or it cannot be asked.
        DataError: If there are no golden vectors, or the server answers with something else.
    """
    if batch < 1:
        raise UsageError(f"batch should be 1 or more, got {batch}.")
    if bool(url) == bool(model):
        raise UsageError(
            f"One of url, a server, and model, a folder, is needed; got {'both' if url else 'neither'}. Give one."
        )
    secret = os.environ.get(key) if key else None
    if key and not secret:
        raise UsageError(f"key names the environment variable {key}, which is not set. Set it.")
    kept = Golden.read(golden)
    if url:
        got = embed_remotely(url, kept.sentences, model_name, secret, batch)
    else:
        got = embed_locally(Path(str(model)), kept.sentences)
    return explain(kept, got, normalized, str(url or model))


class _Row(TypedDict):
    index: int
    embedding: list[float]


class _Answer(TypedDict):
    data: list[_Row]


def embed_remotely(
    url: str, sentences: Sequence[str], model: str = "bertflow", key: str | None = None, batch: int = 8
) -> Float32:
    """Embeddings (n, dim) as a server gives them, in the order given.

    Args:
        url: Address of the server, with or without ``/v1/embeddings``.
        sentences: The sentences, which are sent unchanged.
        model: Name of the model on the server.
        key: Key for the header ``Authorization: Bearer``.
        batch: Number of sentences in a request.

    Raises:
        UsageError: If the address is not one, or the server cannot be reached or refuses.
        DataError: If the answer holds no embeddings.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"url should be http://... or https://..., got {url!r}.")
    address, rows = url.rstrip("/").removesuffix(PATH).removesuffix("/v1") + PATH, []
    for start in range(0, len(sentences), batch):
        sent = list(sentences[start : start + batch])
        body = _post(address, {"model": model, "input": sent, "encoding_format": "float"}, key)
        data = parse_record(body, _Answer, address, "answer with embeddings", IS_IT)["data"]
        if len(data) != len(sent):
            raise DataError(f"{address} answered {len(sent)} sentences with {len(data)} embeddings. {IS_IT}")
        rows += [row["embedding"] for row in sorted(data, key=itemgetter("index"))]
    if len({len(row) for row in rows}) != 1:
        raise DataError(f"{address} answered with vectors of different widths. {IS_IT}")
    return np.array(rows, np.float32)


def _post(address: str, body: dict[str, Any], key: str | None) -> bytes:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(Request(address, json.dumps(body).encode(), headers), timeout=TIMEOUT) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        said = " ".join(error.read(300).decode(errors="replace").split())
        raise UsageError(f"{address} refused with {error.code}: {said}. Check model_name, key and batch.") from error
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"{address} cannot be reached: {reason}. Is the server running?") from error


def embed_locally(folder: Path, sentences: list[str]) -> Float32:
    """The embeddings of a folder, run by what it was written for; the first kind that fits."""
    from bertflow.calibrated import RECORD
    from bertflow.encoder.folders import RECORD_FILE
    from bertflow.export.onnx_encoder import GRAPH, OnnxEncoder
    from bertflow.export.st_folder import load_sentence_transformer

    ours, theirs = partial(load, device="cpu"), partial(load_sentence_transformer, device="cpu")
    kinds: dict[str, Any] = {str(GRAPH): OnnxEncoder, RECORD: ours, RECORD_FILE: ours, "modules.json": theirs}
    for name, opened in kinds.items():
        if (folder / name).is_file():
            return np.asarray(opened(folder).encode(sentences), np.float32)
    raise UsageError(f"{folder} cannot be run here: it holds none of {', '.join(kinds)}. Export it again.")


def distances(got: Float32, wanted: Float32) -> NDArray[np.float64]:
    """Distance of each row from the wanted one (n,), as a share of its length; infinite where shapes differ."""
    if got.shape != wanted.shape:
        return np.full(len(wanted), np.inf)
    wanted = wanted.astype(np.float64)
    length = np.linalg.norm(wanted, axis=1).clip(min=np.finfo(np.float64).tiny)
    found: NDArray[np.float64] = np.linalg.norm(got.astype(np.float64) - wanted, axis=1) / length
    return found


def explain(golden: Golden, got: Float32, normalized: bool = False, where: str = "") -> Diagnosis:
    """Compare vectors (n, any width) of the golden sentences, in their order, with the golden ones.

    Args:
        golden: The right vectors.
        got: The vectors of the server.
        normalized: Whether vectors of unit length are expected.
        where: The server or folder.
    """
    wanted = np.array(golden.vectors, np.float32)
    off = distances(got, _unit(wanted) if normalized else wanted)
    distance, right = float(np.median(off)), bool((off <= golden.tolerance).all())
    text = "The vectors are the golden ones." if right else _cut(golden, off)
    if not text:
        text, distance = _mistake(golden, got, normalized, distance)
    return Diagnosis(right, text, distance, len(got), golden.tolerance, golden.describe, where)


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
            yield float(np.median(distances(answered, _unit(wanted) if unit else wanted))), words


def _cut(golden: Golden, off: NDArray[np.float64]) -> str:
    """In words, if short sentences are right and longer ones wrong, as when they are cut elsewhere."""
    tokens, right = np.array(golden.tokens), off <= golden.tolerance
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
