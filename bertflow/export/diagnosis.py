"""``diagnose``: why do the embeddings of a server, or of a folder, differ from the golden ones?

    right           within the tolerance                    cut elsewhere    short sentences right, longer ones not
    half precision  off by what half precision costs        a mistake        a suspect of the golden file fits
    roughly right   by more than that, as with int8         unit length      any of these, after normalizing

Each explanation is tried. The one that leaves the smallest distance is named, if that distance is small.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from bertflow.errors import DataError, UsageError
from bertflow.records import parse_record
from bertflow.results import AbstractResult

if TYPE_CHECKING:
    from bertflow.export.golden import Golden

Float32 = NDArray[np.float32]
PATH = "/v1/embeddings"
TIMEOUT = 60.0
"""Seconds that one answer may take."""
FITS = 0.05
"""Largest distance, as a share of a vector's length, that an explanation of a wrong vector may leave."""
AT_MOST = 0.5
"""The same where half precision costs more than that."""
HALF_PRECISION = 3.0
"""Up to this many times what half precision was measured to cost is called half precision."""


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
    where: str = ""

    title: ClassVar[str] = "Comparison with the golden vectors"

    def parts(self) -> Iterator[str]:
        """What was compared; and that it is right, if it is."""
        what = self.golden
        off = f"{self.distance:.1e} of their length" if np.isfinite(self.distance) else "another width"
        calibrator = what.get("calibrator", "as it comes")
        yield f"golden    {what['encoder']}, {what['pooling']}, {calibrator}, max_length={what['max_length']}"
        yield (
            f"compared  {self.vectors} vectors of {self.where}: off by {off} (median), {self.tolerance:.0e} is accepted"
        )
        if self.right:
            yield f"right     {self.text}"

    def missed(self) -> str:
        """What is wrong, if something is."""
        return "" if self.right else self.text

    def as_dict(self) -> dict[str, Any]:
        """Everything; the distance is null for another width."""
        return {**vars(self), "distance": self.distance if np.isfinite(self.distance) else None}


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
    from bertflow.export.golden import Golden

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
        got = _embed_locally(Path(str(model)), kept.sentences)
    return replace(explain(kept, got, normalized), where=str(url or model))


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
        answer = parse_record(body, _Answer, address, "answer with embeddings", "Is it an embedding server?")
        if len(answer["data"]) != len(sent):
            raise DataError(
                f"{address} answered {len(sent)} sentences with {len(answer['data'])} embeddings. Is it an embedding "
                "server?"
            )
        rows += [row["embedding"] for row in sorted(answer["data"], key=lambda row: row["index"])]
    if len({len(row) for row in rows}) != 1:
        raise DataError(f"{address} answered with vectors of different widths. Is it an embedding server?")
    return np.array(rows, np.float32)


def _post(address: str, body: dict[str, Any], key: str | None) -> bytes:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(Request(address, json.dumps(body).encode(), headers), timeout=TIMEOUT) as answer:
            content: bytes = answer.read()
            return content
    except HTTPError as error:
        said = " ".join(error.read(300).decode(errors="replace").split())
        raise UsageError(f"{address} refused with {error.code}: {said}. Check model_name, key and batch.") from error
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"{address} cannot be reached: {reason}. Is the server running?") from error


def _embed_locally(folder: Path, sentences: list[str]) -> Float32:
    """The embeddings of a folder, run by what it was written for; the first kind that fits."""
    from bertflow.calibrated import RECORD, CalibratedEncoder
    from bertflow.encoder.folders import RECORD_FILE
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.export.onnx_encoder import GRAPH, OnnxEncoder
    from bertflow.export.st_folder import load_sentence_transformer

    kinds: Mapping[str, Callable[[], Any]] = {
        str(GRAPH): lambda: OnnxEncoder(folder),
        RECORD: lambda: CalibratedEncoder.load(folder, device="cpu"),
        RECORD_FILE: lambda: TransformerEncoder(folder, device="cpu"),
        "modules.json": lambda: load_sentence_transformer(folder, device="cpu"),
    }
    for name, opened in kinds.items():
        if (folder / name).is_file():
            return np.asarray(opened().encode(sentences), np.float32)
    raise UsageError(f"{folder} cannot be run here: it holds none of {', '.join(kinds)}. Export it again.")


def distances(got: Float32, wanted: Float32) -> NDArray[np.float64]:
    """Distance of each row from the wanted one (n,), as a share of its length; infinite where shapes differ."""
    if got.shape != wanted.shape:
        return np.full(len(wanted), np.inf)
    wanted = wanted.astype(np.float64)
    length = np.linalg.norm(wanted, axis=1).clip(min=np.finfo(np.float64).tiny)
    found: NDArray[np.float64] = np.linalg.norm(got.astype(np.float64) - wanted, axis=1) / length
    return found


@dataclass(frozen=True)
class Explanation:
    """One way to read the vectors that came back."""

    text: str
    wanted: Float32
    rows: NDArray[np.intp]

    def distance(self, got: Float32) -> float:
        """Median distance that it leaves; infinite where widths differ."""
        return float(np.median(distances(got[self.rows], self.wanted)))


def explain(golden: "Golden", got: Float32, normalized: bool = False) -> Diagnosis:
    """Compare vectors (n, any width) of the golden sentences, in their order, with the golden ones.

    Args:
        golden: The right vectors.
        got: The vectors of the server.
        normalized: Whether vectors of unit length are expected.
    """
    wanted = _unit(golden.vectors) if normalized else golden.vectors
    distance = Explanation("", wanted, np.arange(len(wanted))).distance(got)
    off = distances(got, wanted)

    def found(text: str, right: bool = False, distance: float = distance) -> Diagnosis:
        described = {**golden.describe, "max_length": golden.max_length}
        return Diagnosis(right, text, distance, len(got), golden.tolerance, described)

    if (off <= golden.tolerance).all():
        return found("The vectors are the golden ones.", right=True)
    if cut := _cut(golden, off):
        return found(cut)
    best = min(_explanations(golden, normalized), key=lambda explanation: explanation.distance(got))
    left, half = best.distance(got), max(golden.precision.values())
    if best.text and left <= min(AT_MOST, max(FITS, HALF_PRECISION * half)):
        lower = left > golden.tolerance
        how = f" (which leaves {left:.1e} of a vector's length: it computes in lower precision, too)" if lower else ""
        return found(f"The server differs: {best.text}{how}.")
    if distance <= HALF_PRECISION * half:
        return found(f"The server computes in lower precision{_like(golden, distance)}.")
    if not best.text and left <= AT_MOST:
        roughly = f"The server computes the right embeddings roughly{_like(golden, distance)}. Is it int8?"
        return found(roughly, distance=left)
    return found(_unexplained(golden, got, best, left))


def _explanations(golden: "Golden", normalized: bool) -> list[Explanation]:
    """The golden vectors and the suspects, of the wanted length first, then of the other."""
    from bertflow.export.golden import SUSPECT_ROWS

    rows = np.array(SUSPECT_ROWS)
    plain = [Explanation("", golden.vectors, np.arange(len(golden.vectors)))]
    plain += [Explanation(text, vectors, rows) for text, vectors in golden.suspects.items()]
    unit = [Explanation(one.text, _unit(one.wanted), one.rows) for one in plain]
    wanted, other, length = (unit, plain, "leaves vectors") if normalized else (plain, unit, "scales vectors")
    length += " at a length of their own" if normalized else " to unit length (cosines are right, distances are not)"
    return [
        *wanted,
        *(replace(one, text=f"{one.text}, and {length}" if one.text else f"it {length}") for one in other),
    ]


def _cut(golden: "Golden", off: NDArray[np.float64]) -> str | None:
    """Whether short sentences are right and longer ones wrong, as when they are cut elsewhere."""
    tokens, right = np.array(golden.tokens), off <= golden.tolerance
    wrong = ~right
    if not right.any() or tokens[wrong].min() <= tokens[right].max():
        return None
    if tokens[wrong].min() > golden.max_length:
        return (
            f"The server differs: it reads more than max_length={golden.max_length} tokens of a long sentence; "
            f"up to {tokens[right].max()} tokens its vectors are right."
        )
    return (
        f"The server differs: it cuts long sentences somewhere from {tokens[right].max()} to {tokens[wrong].min() - 1} "
        f"tokens, and not at max_length={golden.max_length}."
    )


def _like(golden: "Golden", distance: float) -> str:
    close = min(golden.precision, key=lambda dtype: abs(np.log(golden.precision[dtype] / distance)))
    return f": its vectors are off by {distance:.1e} of their length, {close} costs {golden.precision[close]:.1e}"


def _unexplained(golden: "Golden", got: Float32, best: Explanation, left: float) -> str:
    width = golden.vectors.shape[1]
    if got.shape[1] != width:
        return (
            f"The server differs: its vectors are {got.shape[1]} wide, {width} were expected, and none of the usual "
            "mistakes explains them. Is it another model?"
        )
    return (
        f"The server differs, and none of {len(golden.suspects)} usual mistakes explains it: the closest "
        f"({best.text or 'the right vectors'}) leaves {left:.2f} of a vector's length. Is it another model?"
    )


def _unit(x: Float32) -> Float32:
    return x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
