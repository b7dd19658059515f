"""Golden vectors: what an exported encoder must answer, written beside it as ``golden.json``.

    sentences, tokens   32 sentences, and how many tokens each has before it is truncated
    vectors             what the export answers; a row within ``tolerance`` of its length is right
    suspects            for the first 8 and the 6 long ones, what frequent mistakes would answer: no calibrator,
                        another pooling, no prompt
    precision           how far the other dtypes are off, as a share of a row's length (median)

Numbers are kept to 7 digits, the precision of float32.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.model import DTYPES
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.export.diagnosis import distances
from bertflow.export.parts import transformer_of
from bertflow.files import write_json
from bertflow.progress import unsaid
from bertflow.records import read_record

GOLDEN = "golden.json"
FORMAT = 1
TOLERANCES = (2e-5, 1e-3)
"""Accepted distance of float32, as a share of a row's length: a third of what half precision costs, within these
bounds. Other kernels and batches stay below it."""
POOLINGS = ("mean", "cls", "max", "last-token")
"""What a server that does not know the pooling uses instead, on the last block it has."""
PLAIN: tuple[str, ...] = tuple(
    json.loads((files("bertflow.export") / "golden_sentences.json").read_text(encoding="utf-8"))
)
"""Plain and awkward sentences. They never change: a golden file of today can be compared with one of next year."""
LONG = (2, 4, 8, 12, 18, 26)
"""How many of them are joined into a long one: some 25, 50, 100, 150, 220 and 330 tokens of BERT."""
GOLDEN_SENTENCES = (*PLAIN, *(" ".join(PLAIN[:n]) for n in LONG))
"""The 32 sentences of every golden file."""
SUSPECT_ROWS = (*range(8), *range(len(PLAIN), len(GOLDEN_SENTENCES)))
"""Sentences for which the mistakes are kept."""
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class GoldenRecord:
    """What ``golden.json`` holds; see ``Golden``."""

    format: Literal[1]
    sentences: list[str]
    tokens: list[int]
    vectors: list[list[float]]
    suspects: dict[str, list[list[float]]]
    precision: dict[str, float]
    tolerance: float
    describe: dict[str, Any]


@dataclass(frozen=True)
class Golden:
    """What an exported encoder must answer.

    Attributes:
        sentences: Text as it is sent, without the prompt.
        tokens: Tokens of each sentence with its prompt and special tokens, before it is truncated.
        vectors: (n, dim).
        suspects: A mistake in plain words -> what it would answer for ``SUSPECT_ROWS``.
        precision: A dtype -> its median distance from float32, as a share of a row's length.
        tolerance: Accepted distance, as a share of a row's length.
        describe: ``describe()`` of the encoder.
        format: Version of the file's form.
    """

    sentences: list[str]
    tokens: list[int]
    vectors: Float32
    suspects: Mapping[str, Float32]
    precision: Mapping[str, float]
    tolerance: float
    describe: Mapping[str, Any]
    format: int = FORMAT

    @property
    def max_length(self) -> int:
        """Longest sentence, in tokens."""
        return int(self.describe["max_length"])

    def write(self, folder: Path) -> None:
        """Write ``golden.json`` into a folder."""
        arrays = {"vectors": _rounded(self.vectors), "suspects": {k: _rounded(v) for k, v in self.suspects.items()}}
        write_json(folder / GOLDEN, {**asdict(self), **arrays})

    @classmethod
    def read(cls, path: str | Path) -> "Golden":
        """Read a golden file, or the one in an exported folder.

        Raises:
            DataError: If there is none, or it is damaged.
        """
        path = Path(path)
        path = path / GOLDEN if path.is_dir() else path
        record = read_record(path, GoldenRecord, "file of golden vectors", "Write it again with `bertflow export`.")
        suspects = {name: np.array(rows, np.float32) for name, rows in record.suspects.items()}
        arrays = {"vectors": np.array(record.vectors, np.float32), "suspects": suspects}
        return cls(**{**vars(record), **arrays})


def make_golden(system: SentenceEncoder, written: Path) -> Golden:
    """Embed the golden sentences, correctly and with frequent mistakes.

    Args:
        system: The encoder that is exported.
        written: Folder to which its raw encoder was written, to be opened in other ways.
    """
    with unsaid():  # long sentences are truncated on purpose
        return _make(system, transformer_of(system), written, list(GOLDEN_SENTENCES))


def _make(system: SentenceEncoder, encoder: TransformerEncoder, written: Path, sentences: list[str]) -> Golden:
    some = [sentences[row] for row in SUSPECT_ROWS]
    raw = encoder.encode(sentences)
    vectors = system.calibrate(raw)
    suspects = _mistakes(system, encoder, written, some)
    if system.calibrator is not None:
        suspects = {"it leaves the calibrator out": raw[list(SUSPECT_ROWS)], **suspects}
    right = vectors[list(SUSPECT_ROWS)]
    own = encoder.describe()["dtype"]
    others = {
        dtype: TransformerEncoder(written, dtype=dtype, device="cpu").encode(some) for dtype in DTYPES if dtype != own
    }
    precision = {dtype: float(np.median(distances(system.calibrate(x), right))) for dtype, x in others.items()}
    # In half precision the last digits depend on the machine: as many of them as differ from float32.
    if own == "float32":
        tolerance = float(np.clip(min(precision.values()) / 3, *TOLERANCES))
    else:
        tolerance = 3 * precision["float32"]
    tokens = _count_tokens(encoder, written, sentences)
    return Golden(sentences, tokens, vectors, suspects, precision, tolerance, system.describe())


def _mistakes(
    system: SentenceEncoder, encoder: TransformerEncoder, written: Path, some: list[str]
) -> dict[str, Float32]:
    depth = max(encoder.describe()["layers"])
    found: dict[str, Float32] = {}
    for tokens, x in encoder.encode_poolings(some, [f"{name}({depth})" for name in POOLINGS]).items():
        wrong = f"it pools by {tokens.split('(')[0]} over its last block"
        if tokens in (encoder.describe()["pooling"], f"{encoder.describe()['pooling']}({depth})"):
            continue
        if system.calibrator is not None:
            found[f"{wrong}, and leaves the calibrator out"] = x
            if x.shape[1] == encoder.dim:
                found[wrong] = system.calibrate(x)
        else:
            found[wrong] = x
    if encoder.describe()["prompt"]:
        bare = TransformerEncoder(written, prompt="", device="cpu").encode(some)
        found["it leaves the prompt out"] = system.calibrate(bare)
    return found


def _count_tokens(encoder: TransformerEncoder, written: Path, sentences: list[str]) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(written, local_files_only=True)
    texts = [encoder.describe()["prompt"] + sentence for sentence in sentences]
    return [len(ids) for ids in tokenizer(texts, truncation=False, verbose=False)["input_ids"]]


def _rounded(x: Float32) -> list[list[float]]:
    return [[float(f"{value:.7g}") for value in row] for row in x.tolist()]
