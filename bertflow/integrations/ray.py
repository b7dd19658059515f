"""Embed 100 million sentences and more on a Ray cluster: files of text in, files of vectors out.

    manifest.json                      what is embedded, and by which encoder
    vectors/00000-of-00042.parquet     ``row`` of the text, counted over all files, and its ``vector`` (float32)
    done/00000-of-00042.safetensors    written last: the moments of that file's vectors, and the XXH3 of its text, of
                                       the file and of the moments
    moments.safetensors                the moments of all vectors, from which every closed form can be fitted

The text is cut into pieces before anything runs: row groups of a parquet file, ranges of bytes of a text file. A piece
is one task and one file, whichever worker computes it and however often, so every row is written once even if workers
die. A second call computes only the pieces that are missing; it reads the text of the others again, and refuses text
that has changed.

    from functools import partial
    from bertflow import TransformerEncoder, Whitening
    from bertflow.integrations.ray import embed_with_ray

    make = partial(TransformerEncoder, "bert-base-uncased", pooling="first-last-avg")
    moments = embed_with_ray(["s3-mount/a.parquet"], "vectors", make, workers=32, resources={"num_gpus": 1})
    whitening = Whitening().fit_moments(moments)
"""

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, starmap, takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bertflow.data.corpus import chunks
from bertflow.data.tables import decoded, open_table
from bertflow.data.vectors import open_parquet, readable_parquet
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, RowError, UsageError, needs
from bertflow.files import atomic_file, file_xxh3
from bertflow.moments import Moments
from bertflow.records import Count, read_arrays, read_record, write_record
from bertflow.text_keys import is_blank

with needs("ray", "ray"):
    import ray
    import ray.data

PIECE = 100_000
"""Rows of a piece, approximately: the work that is lost when a worker dies."""
BLOCK = 8192
"""Sentences encoded at a time; the memory of a worker grows with this."""


@dataclass(frozen=True)
class Piece:
    """Some consecutive rows of one file.

    Attributes:
        path: The file.
        row: Number of its first row, counted over all files.
        start: Its first row group, or its first byte.
        stop: The row group or byte after its last.
        name: Name of the files that are made of it.
    """

    path: str
    row: Count
    start: Count
    stop: Count
    name: str = ""

    def read(self, column: str) -> Iterator[tuple[int, str]]:
        """The rows that hold text, with their numbers.

        Raises:
            RowError: For a row that is not text.
        """
        texts = _parquet_rows(self, column) if self.path.endswith(".parquet") else _lines(self)
        for row, text in enumerate(texts, start=self.row):
            if sentence := " ".join(text.split()):
                yield row, sentence

    def digest(self, column: str) -> str:
        """XXH3 of its text, with the numbers of the rows."""
        digest = xxhash.xxh3_64()
        for row, sentence in self.read(column):
            digest.update(_line(row, sentence))
        return digest.hexdigest()


@dataclass(frozen=True)
class RayManifest:
    """What is embedded: ``describe()`` of the encoder, the column that holds text, and the pieces."""

    encoder: dict[str, Any]
    column: str
    pieces: list[Piece]

    def begin(self, output: Path) -> None:
        """Write the manifest, or compare it with the one that is there.

        Raises:
            DataError: If the folder holds vectors of something else; the message says what differs.
        """
        path = output / "manifest.json"
        if path.exists():
            before = read_record(path, RayManifest, "manifest", "Choose another folder.")
            others = Identity.from_record(before.encoder).differences(Identity.from_record(self.encoder))
            changed = [f"the encoder's {one.key}" for one in others]
            changed += [name for name in ("column", "pieces") if getattr(before, name) != getattr(self, name)]
            if changed:
                what = f"{', '.join(changed)} differ{'s' if len(changed) == 1 else ''}"
                raise DataError(f"{output} holds vectors of something else: {what}. Choose another folder.")
        else:
            write_record(path, asdict(self))
        for folder in (output / "vectors", output / "done"):
            folder.mkdir(parents=True, exist_ok=True)


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
        files: Parquet files, or text files with one sentence a line, on a disk that all nodes see.
        output: A folder that all nodes see; new, or of an earlier call with the same arguments.
        make: Makes the encoder, in each worker: ``partial(TransformerEncoder, "name")``, or, for a calibrated one,
            ``partial(CalibratedEncoder.load, "folder")``.
        column: Column of the parquet files that holds the text.
        workers: Number of encoders.
        resources: Resources of each worker, such as ``{"num_gpus": 1}``; one CPU by default.
        piece: Rows of a task, approximately.

    Returns:
        The moments of all vectors.

    Raises:
        DataError: If a file cannot be read, or holds other text than it did, or ``output`` holds something else.
        UsageError: If there are no files, workers or rows of a piece.
    """
    if not files or workers < 1 or piece < 1:
        raise UsageError(
            f"Files, workers and rows of a piece are wanted, got {len(files)}, {workers} and {piece}. Give one of each."
        )
    output = Path(output).absolute()
    pieces = cut(files, piece)
    RayManifest(make().describe(), column, pieces).begin(output)
    found = {each: _facts(output, each) for each in pieces}
    left = [each for each, facts in found.items() if not _is_done(output, each, column, facts)]
    if left:
        rows = ray.data.from_items([asdict(each) for each in left], override_num_blocks=len(left))
        embedded = rows.map(
            cast(Callable[[dict[str, Any]], dict[str, Any]], _Worker),  # Ray calls the class, then what it gives
            fn_constructor_args=(make, str(output), column),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(left))),
            **cast(dict[str, Any], resources or {"num_cpus": 1}),
        )
        for _ in embedded.iter_rows():
            pass  # a worker returns the name of the file that it has written
    parts = [Moments.from_arrays(_moments(output, each)) for each in pieces]
    if not any(part.n for part in parts):
        raise DataError(f"{', '.join(map(str, files))} should hold text, but all rows are blank. Give text.")
    moments = Moments.merged(part for part in parts if part.n)
    with atomic_file(output / "moments.safetensors") as aside:
        save_file(moments.arrays(), aside)
    return moments


class _Worker:
    """An encoder, kept from piece to piece."""

    def __init__(self, make: Callable[[], SentenceEncoder], output: str, column: str) -> None:
        self.encoder, self.output, self.column = make(), Path(output), column

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        piece, dim = Piece(**row), self.encoder.dim
        schema = pa.schema([("row", pa.int64()), ("vector", pa.list_(pa.float32(), dim))])
        moments, digest = Moments(0, np.zeros(dim), np.zeros((dim, dim))), xxhash.xxh3_64()
        # The numbers of a vector do not repeat, so a dictionary of them would take more space.
        options = {"use_dictionary": False, "compression": "zstd"}
        vectors = _vectors(self.output, piece)
        with atomic_file(vectors) as aside, pq.ParquetWriter(aside, schema, **options) as writer:
            for chunk in chunks(piece.read(self.column), BLOCK):
                numbers, sentences = zip(*chunk, strict=True)
                digest.update(b"".join(starmap(_line, chunk)))
                x = self.encoder.encode(sentences, progress=False)
                moments = moments.merge(Moments.of(x))
                columns = [pa.array(numbers, pa.int64()), pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), dim)]
                writer.write_table(pa.table(columns, schema=schema))
        sums = {"text": digest.hexdigest(), "vectors": file_xxh3(vectors), "moments": _sum(moments.arrays())}
        with atomic_file(_done(self.output, piece)) as aside:
            save_file(moments.arrays(), aside, sums | {"bytes": str(vectors.stat().st_size)})
        return {"name": piece.name}


def cut(files: Sequence[str | Path], size: int = PIECE) -> list[Piece]:
    """The pieces of some files, of ``size`` rows approximately: in a parquet file whole row groups.

    Raises:
        DataError: If a file is missing or is not parquet, or there are no rows.
    """
    pieces: list[Piece] = []
    row = 0
    for file in files:
        path = Path(file).absolute()
        if not path.is_file():
            raise DataError(f"{path} is missing. Give the path of an existing file, on a disk that all nodes see.")
        for start, stop, rows in _row_groups(path, size) if path.suffix == ".parquet" else _byte_ranges(path, size):
            pieces.append(Piece(str(path), row, start, stop))
            row += rows
    if not pieces:
        raise DataError(f"{', '.join(map(str, files))} should hold rows of text, but there are none. Give text.")
    return [replace(each, name=f"{number:05d}-of-{len(pieces):05d}") for number, each in enumerate(pieces)]


def _row_groups(path: Path, size: int) -> Iterator[tuple[int, int, int]]:
    """First row group, the one after the last, and number of rows, of each piece."""
    with readable_parquet(path):
        metadata = open_parquet(path).metadata
    start = rows = 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        if rows >= size or group == metadata.num_row_groups - 1:
            yield start, group + 1, rows
            start, rows = group + 1, 0


def _byte_ranges(path: Path, size: int) -> Iterator[tuple[int, int, int]]:
    """First byte, the one after the last, and number of lines, of each piece."""
    start = 0
    with path.open("rb") as file:
        for lines in chunks(file, size):
            stop = start + sum(map(len, lines))
            yield start, stop, len(lines)
            start = stop


def _parquet_rows(piece: Piece, column: str) -> Iterator[str]:
    with readable_parquet(Path(piece.path)):
        file, table = open_parquet(Path(piece.path)), open_table(piece.path)
        (column,) = table.require([[column]], "Give column=...")
        before = sum(file.metadata.row_group(group).num_rows for group in range(piece.start))
        batches = file.iter_batches(BLOCK, row_groups=list(range(piece.start, piece.stop)), columns=[column])
        cells = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        for number, text in enumerate(cells, start=before + 1):
            blank = text is None or (isinstance(text, str) and is_blank(text))
            yield "" if blank else table.text(number, column, text, "Give column=...")


def _lines(piece: Piece) -> Iterator[str]:
    path = Path(piece.path)
    with path.open("rb") as file:
        file.seek(piece.start)
        for number, raw in enumerate(takewhile(lambda _: file.tell() <= piece.stop, file), start=1):
            first = not piece.start and number == 1
            try:
                line = decoded(path, 1 if first else 2, raw.removeprefix(BOM_UTF8) if first else raw)
            except RowError as error:
                file.seek(0)
                before = sum(1 for _ in takewhile(lambda _: file.tell() <= piece.start, file))
                raise RowError(piece.path, before + number, error.reason) from None
            yield line


def _sum(arrays: Mapping[str, NDArray[Any]]) -> str:
    """XXH3 of some arrays."""
    digest = xxhash.xxh3_64()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _line(row: int, sentence: str) -> bytes:
    return f"{row} {sentence}\n".encode()


def _done(output: Path, piece: Piece) -> Path:
    return output / "done" / f"{piece.name}.safetensors"


def _moments(output: Path, piece: Piece) -> dict[str, NDArray[Any]]:
    return read_arrays(_done(output, piece), Moments.ARRAYS, Moments.OPTIONAL)


def _facts(output: Path, piece: Piece) -> dict[str, str]:
    """What is known of the vectors of a piece, by its name; nothing where they are missing or damaged."""
    vectors, done = _vectors(output, piece), _done(output, piece)
    if not vectors.is_file():
        return {}
    try:
        with safe_open(done, "numpy") as file:
            facts = dict(file.metadata() or {})
        found = {"bytes": str(vectors.stat().st_size), "moments": _sum(_moments(output, piece))}
    except (SafetensorError, OSError, DataError):
        return {}
    return facts if all(facts.get(name) == value for name, value in found.items()) else {}


def _is_done(output: Path, piece: Piece, column: str, facts: Mapping[str, str]) -> bool:
    """Whether the vectors of a piece are there.

    Raises:
        DataError: If they are of other text than the piece holds now.
    """
    if facts and facts.get("text") != piece.digest(column):
        raise DataError(
            f"{output} holds vectors of something else: the text of {piece.path} from row {piece.row:,} on has changed "
            "since. Choose another folder."
        )
    return bool(facts) and facts.get("vectors") == file_xxh3(_vectors(output, piece))


def _vectors(output: Path, piece: Piece) -> Path:
    return output / "vectors" / f"{piece.name}.parquet"
