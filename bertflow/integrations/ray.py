"""100 million sentences and more, on a Ray cluster: files of text in, files of vectors out.

    manifest.json                      what was embedded, and by what
    vectors/00000-of-00042.parquet     ``row`` of the text, counted over all files, and its ``vector`` (float32)
    done/00000-of-00042.safetensors    written last: the moments of that file's vectors
    moments.safetensors                those of all: what every closed-form calibrator is fitted from

The text is cut into pieces before anything runs: row groups of a parquet file, ranges of bytes of a text file. A piece
is one task and one file, whichever worker does it and however often, so every row comes out once although workers die.
Called again, only the pieces that are missing are done.

    from functools import partial
    from bertflow import TransformerEncoder, Whitening
    from bertflow.integrations.ray import embed_with_ray

    make = partial(TransformerEncoder, "bert-base-uncased", pooling="first-last-avg")
    moments = embed_with_ray(["s3-mount/a.parquet"], "vectors", make, workers=32, resources={"num_gpus": 1})
    whitening = Whitening().fit_moments(moments)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save_file

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, MissingExtraError, UsageError
from bertflow.files import atomic_file, to_json, write_text
from bertflow.moments import Moments
from bertflow.records import read_record

try:
    import ray
    import ray.data
except ImportError:
    raise MissingExtraError("ray", "ray") from None

PIECE = 100_000
"""Rows of a piece, about: what is lost when a worker dies."""
BLOCK = 8192
"""Sentences encoded at a time; the memory of a worker grows with this."""


@dataclass(frozen=True)
class Piece:
    """Some consecutive rows of one file.

    Attributes:
        path: The file.
        row: The first of them, counted over all files.
        start: Where they start: the first row group, or the first byte.
        stop: Before which they end.
        name: Of what is made of them.
    """

    path: str
    row: int
    start: int
    stop: int
    name: str = ""

    def read(self, column: str) -> Iterator[tuple[int, str]]:
        """The rows that hold text, with their numbers."""
        texts = _parquet_rows(self, column) if self.path.endswith(".parquet") else _lines(self)
        for row, text in enumerate(texts, start=self.row):
            if sentence := " ".join((text or "").split()):
                yield row, sentence


def embed_with_ray(
    files: Sequence[str | Path],
    output: str | Path,
    make: Callable[[], SentenceEncoder],
    column: str = "text",
    workers: int = 1,
    resources: Mapping[str, float] | None = None,
    piece: int = PIECE,
) -> Moments:
    """Embed every row of some files that holds text.

    Args:
        files: Parquet files, or text files with a sentence a line, on a disk that all nodes see.
        output: A folder that all nodes see; new, or of an earlier call with the same arguments.
        make: Makes the encoder, in each worker: ``partial(TransformerEncoder, "name")``, or, calibrated,
            ``partial(CalibratedEncoder.load, "folder")``.
        column: Of the parquet files that holds the text.
        workers: How many encoders there are.
        resources: What each takes, as ``{"num_gpus": 1}``; a CPU by default.
        piece: Rows of a task, about.

    Returns:
        The moments of all vectors.

    Raises:
        DataError: If a file cannot be read, or ``output`` holds something else.
        UsageError: If there are no files, workers or rows of a piece.
    """
    if not files or workers < 1 or piece < 1:
        raise UsageError(
            f"Files, workers and rows of a piece are wanted, got {len(files)}, {workers} and {piece}. Give one of each."
        )
    output = Path(output).absolute()
    pieces = cut(files, piece)
    _begin(output, _manifest(make(), column, pieces))
    left = [each for each in pieces if not _done(output, each).exists()]
    if left:
        rows = ray.data.from_items([asdict(each) for each in left], override_num_blocks=len(left))
        options: dict[str, Any] = dict(resources or {"num_cpus": 1})
        embedded = rows.map(
            cast(Callable[[dict[str, Any]], dict[str, Any]], _Worker),  # Ray calls the class, then what it gives
            fn_constructor_args=(make, str(output), column),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(left))),
            **options,
        )
        for _ in embedded.iter_rows():
            pass  # what a worker gives back is the name of what it has written
    parts = [load_file(_done(output, each)) for each in pieces]
    moments = Moments.merged(Moments.from_arrays(part) for part in parts if part["n"][0])
    with atomic_file(output / "moments.safetensors") as aside:
        save_file(moments.arrays(), aside)
    return moments


class _Worker:
    """An encoder, kept from piece to piece."""

    def __init__(self, make: Callable[[], SentenceEncoder], output: str, column: str) -> None:
        self.encoder, self.output, self.column = make(), Path(output), column

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        piece = Piece(**row)
        dim = self.encoder.dim
        schema = pa.schema([("row", pa.int64()), ("vector", pa.list_(pa.float32(), dim))])
        moments = Moments(0, np.zeros(dim), np.zeros((dim, dim)))
        # Numbers of a vector do not repeat, so a dictionary of them would only cost.
        kept = {"use_dictionary": False, "compression": "zstd"}
        with atomic_file(_vectors(self.output, piece)) as aside, pq.ParquetWriter(aside, schema, **kept) as writer:
            for rows, sentences in _blocks(piece.read(self.column)):
                x = self.encoder.encode(sentences)
                part = Moments.of(x)
                moments = moments.merge(part) if moments.n else part
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), dim)
                writer.write_table(pa.table([pa.array(rows, pa.int64()), vectors], schema=schema))
        with atomic_file(_done(self.output, piece)) as aside:
            save_file(moments.arrays(), aside)
        return {"name": piece.name}


def cut(files: Sequence[str | Path], size: int = PIECE) -> list[Piece]:
    """All pieces of some files, of about ``size`` rows: in a parquet file whole row groups, of which one may be larger.

    Raises:
        DataError: If a file is missing or is no parquet.
    """
    pieces: list[Piece] = []
    row = 0
    for file in files:
        path = Path(file).absolute()
        if not path.is_file():
            raise DataError(f"{path} is missing. Give the path of an existing file, on a disk that all nodes see.")
        bounds = _row_groups(path, size) if path.suffix == ".parquet" else _line_starts(path, size)
        for start, stop, rows in bounds:
            pieces.append(Piece(str(path), row, start, stop))
            row += rows
    if not pieces:
        raise DataError(f"{', '.join(map(str, files))} should hold rows of text, but there are none. Give text.")
    names = [f"{number:05d}-of-{len(pieces):05d}" for number in range(len(pieces))]
    return [Piece(each.path, each.row, each.start, each.stop, name) for each, name in zip(pieces, names, strict=True)]


def _row_groups(path: Path, size: int) -> Iterator[tuple[int, int, int]]:
    """First row group, the one after the last, and rows, of each piece."""
    try:
        metadata = pq.ParquetFile(path).metadata
    except pa.ArrowException as error:
        raise DataError(f"{path} is no parquet file: {error}. Fetch it again.") from None
    start = rows = 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        if rows >= size or group == metadata.num_row_groups - 1:
            yield start, group + 1, rows
            start, rows = group + 1, 0


def _line_starts(path: Path, size: int) -> Iterator[tuple[int, int, int]]:
    """First byte, the one after the last, and lines, of each piece."""
    start = at = lines = 0
    with path.open("rb") as file:
        for line in file:
            at, lines = at + len(line), lines + 1
            if lines == size:
                yield start, at, lines
                start, lines = at, 0
    if lines:
        yield start, at, lines


def _parquet_rows(piece: Piece, column: str) -> Iterator[str | None]:
    file = pq.ParquetFile(piece.path)
    if column not in file.schema_arrow.names:
        known = ", ".join(file.schema_arrow.names)
        raise DataError(f"{piece.path} should have a column {column}, but has {known}. Give column=...")
    for batch in file.iter_batches(BLOCK, row_groups=list(range(piece.start, piece.stop)), columns=[column]):
        yield from batch.column(0).to_pylist()


def _lines(piece: Piece) -> Iterator[str]:
    with Path(piece.path).open("rb") as file:
        file.seek(piece.start)
        left = piece.stop - piece.start
        while left > 0:
            line = file.readline()
            left -= len(line)
            yield line.decode()


def _blocks(rows: Iterator[tuple[int, str]]) -> Iterator[tuple[list[int], list[str]]]:
    numbers: list[int] = []
    sentences: list[str] = []
    for number, sentence in rows:
        numbers.append(number)
        sentences.append(sentence)
        if len(numbers) == BLOCK:
            yield numbers, sentences
            numbers, sentences = [], []
    if numbers:
        yield numbers, sentences


def _manifest(encoder: SentenceEncoder, column: str, pieces: Sequence[Piece]) -> dict[str, Any]:
    return {"encoder": encoder.describe(), "column": column, "pieces": [asdict(piece) for piece in pieces]}


def _begin(output: Path, manifest: dict[str, Any]) -> None:
    """Write down what is to be embedded, or see that it is what was begun."""
    path = output / "manifest.json"
    text = to_json(manifest)
    if path.exists():
        before = read_record(path, dict[str, Any], "manifest", "Choose another folder.")
        others = Identity.from_record(before.get("encoder", {})).differences(Identity.from_record(manifest["encoder"]))
        rest = [name for name in manifest if name != "encoder"]
        changed = [f"the encoder's {one.key}" for one in others]
        changed += [name for name in rest if to_json({name: manifest[name]}) != to_json({name: before.get(name)})]
        if changed:
            raise DataError(
                f"{output} holds vectors of something else: {', '.join(changed)} "
                f"differ{'s' if len(changed) == 1 else ''}. Choose another folder."
            )
    else:
        write_text(path, text)
    for folder in (output / "vectors", output / "done"):
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".*"):
            leftover.unlink()  # of a worker that was killed


def _vectors(output: Path, piece: Piece) -> Path:
    return output / "vectors" / f"{piece.name}.parquet"


def _done(output: Path, piece: Piece) -> Path:
    return output / "done" / f"{piece.name}.safetensors"
