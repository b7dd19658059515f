"""Embed 100 million sentences and more on a Ray cluster: files of text in, files of vectors out.

    manifest.json                      what is embedded, by which encoder, and the parts
    vectors/00000-of-00042.parquet     ``row`` of the text, counted over all files, and its ``vector`` (float32)
    moments/00000-of-00042.safetensors the moments of these vectors
    done/00000-of-00042.json           written last: the checksums of both, and of the text
    moments.safetensors                the moments of all vectors, from which every closed form can be fitted

The text is cut into parts of a job (``bertflow.jobs``) before anything runs: row groups of a parquet file, ranges of
bytes of a text file. Ray gives each part to one worker, and again if that dies, so every row is written once. A second
call computes only the parts that are missing; it reads the text of the others again, and refuses text that has changed.

    from functools import partial
    from bertflow import TransformerEncoder, Whitening
    from bertflow.integrations.ray import embed_with_ray

    make = partial(TransformerEncoder, "bert-base-uncased", pooling="first-last-avg")
    moments = embed_with_ray(["s3-mount/a.parquet"], "vectors", make, workers=32, resources={"num_gpus": 1})
    whitening = Whitening().fit_moments(moments)
"""

from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from safetensors.numpy import save_file

from bertflow import jobs
from bertflow.data.corpus import chunks
from bertflow.data.lines import decoded, is_blank
from bertflow.data.tables import TableRow, open_table
from bertflow.data.vectors import open_parquet, readable_parquet
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, needs, require_between
from bertflow.files import atomic_file
from bertflow.moments import Moments
from bertflow.records import Count, read_arrays, read_record

with needs("ray", "ray"):
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
        line: The same, counted in this file.
        rows: How many rows.
        start: Its first row group, or its first byte.
        stop: The row group or byte after its last.
    """

    path: str
    row: Count
    line: Count
    rows: Count
    start: Count
    stop: Count

    def read(self, column: str, digest: xxhash.xxh3_64) -> Iterator[tuple[int, str]]:
        """The rows that hold text, with their numbers; ``digest`` is told both.

        Raises:
            RowError: For a row that is not text.
        """
        texts = _parquet_rows(self, column) if self.path.endswith(".parquet") else _lines(self)
        for row, text in enumerate(texts, start=self.row):
            if sentence := " ".join(text.split()):
                digest.update(f"{row} {sentence}\n".encode())
                yield row, sentence

    def digest(self, column: str) -> str:
        """The XXH3 of its text and the numbers of its rows."""
        digest = xxhash.xxh3_64()
        for _ in self.read(column, digest):
            pass
        return digest.hexdigest()


@dataclass(frozen=True)
class PieceMark(jobs.Mark):
    """The mark of a piece, with the XXH3 of its text and the numbers of its rows."""

    text: str


@dataclass(frozen=True)
class RayManifest:
    """What is embedded: ``describe()`` of the encoder, the column that holds text, and the pieces."""

    encoder: dict[str, Any]
    column: str
    pieces: list[Piece]

    def begin(self, output: Path) -> jobs.Job[PieceMark]:
        """Write the manifest, or compare it with the one that is there.

        Raises:
            DataError: If the folder holds vectors of something else; the message says what differs.
        """
        plan = output / "manifest.json"
        if not jobs.begin_job(plan, "folder of vectors", (), lambda: asdict(self), jobs.unlocked):
            before = read_record(plan, RayManifest, "manifest", "Choose another folder.")
            others = Identity.from_record(before.encoder).differences(Identity.from_record(self.encoder))
            changed = [f"the encoder's {one.key}" for one in others]
            changed += [name for name in ("column", "pieces") if getattr(before, name) != getattr(self, name)]
            jobs.require_plan(output, "folder of vectors", changed)
        names = [f"{number:05d}-of-{len(self.pieces):05d}" for number in range(len(self.pieces))]
        return jobs.Job(output, names, PieceMark, ("vectors/{}.parquet", "moments/{}.safetensors"))


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
        files: Parquet files, or text files with one sentence per line, on a disk that all nodes see.
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
        UsageError: If there are no files, no workers or no rows in a piece.
    """
    require_between(1, files=len(files), workers=workers, piece=piece)
    output = Path(output).absolute()
    pieces = cut(files, piece)
    manifest = RayManifest(make().describe(), column, pieces)
    job = manifest.begin(output)
    for number, mark in job.marks().items():
        if pieces[number].digest(column) != mark.text:
            raise DataError(
                f"{output} holds vectors of something else: the text of {pieces[number].path} from row "
                f"{pieces[number].row:,} on has changed since. Choose another folder."
            )
    if left := [number for number in range(len(pieces)) if not job.is_whole(number)]:
        rows = ray.data.from_items([{"number": number} for number in left], override_num_blocks=len(left))
        embedded = rows.map(
            cast(Callable[[dict[str, Any]], dict[str, Any]], _Worker),  # Ray calls the class, then what it gives
            fn_constructor_args=(make, job, manifest),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(left))),
            **cast(dict[str, Any], resources or {"num_cpus": 1}),
        )
        for _ in embedded.iter_rows():
            pass  # a worker returns the number of the piece that it has written
    paths = (output / f"moments/{name}.safetensors" for name in job.names)
    arrays = (read_arrays(path, Moments.ARRAYS, Moments.OPTIONAL) for path in paths)
    parts = [part for part in map(Moments.from_arrays, arrays) if part.n]
    if not parts:
        raise DataError(f"{', '.join(map(str, files))} should hold text, but all rows are blank. Give text.")
    moments = Moments.merged(parts)
    with atomic_file(output / "moments.safetensors") as aside:
        save_file(moments.arrays(), aside)
    return moments


class _Worker:
    """An encoder, kept from piece to piece."""

    def __init__(self, make: Callable[[], SentenceEncoder], job: jobs.Job[PieceMark], manifest: RayManifest) -> None:
        self.encoder, self.job, self.manifest = make(), job, manifest

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.job.work(self.write, parts=[int(row["number"])], lock=jobs.unlocked)
        return row

    def write(self, number: int) -> None:
        """Embed a piece."""
        piece, dim = self.manifest.pieces[number], self.encoder.dim
        schema = pa.schema([("row", pa.int64()), ("vector", pa.list_(pa.float32(), dim))])
        total, digest = Moments(0, np.zeros(dim), np.zeros((dim, dim))), xxhash.xxh3_64()
        # The numbers of a vector do not repeat, so a dictionary of them would take more space.
        options = {"use_dictionary": False, "compression": "zstd"}
        vectors, moments = self.job.paths(number).values()
        with atomic_file(vectors) as aside, pq.ParquetWriter(aside, schema, **options) as writer:
            for chunk in chunks(piece.read(self.manifest.column, digest), BLOCK):
                numbers, sentences = zip(*chunk, strict=True)
                x = self.encoder.encode(sentences, progress=False)
                total = total.merge(Moments.of(x))
                columns = [pa.array(numbers, pa.int64()), pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), dim)]
                writer.write_table(pa.table(columns, schema=schema))
        with atomic_file(moments) as aside:
            save_file(total.arrays(), aside)
        self.job.set_mark(number, rows=piece.rows, left_out=[], text=digest.hexdigest())


def cut(files: Sequence[str | Path], size: int = PIECE) -> list[Piece]:
    """The pieces of some files, of ``size`` rows approximately: in a parquet file whole row groups.

    Raises:
        DataError: If a file is missing or is not parquet, or there are no rows.
    """
    pieces: list[Piece] = []
    row = 0
    for file in files:
        path, first = Path(file).absolute(), row
        if not path.is_file():
            raise DataError(f"{path} is missing. Give the path of an existing file, on a disk that all nodes see.")
        for start, stop, rows in _row_groups(path, size) if path.suffix == ".parquet" else _byte_ranges(path, size):
            pieces.append(Piece(str(path), row, row - first, rows, start, stop))
            row += rows
    if not pieces:
        raise DataError(f"{', '.join(map(str, files))} should hold rows of text, but there are none. Give text.")
    return pieces


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
        batches = file.iter_batches(BLOCK, row_groups=list(range(piece.start, piece.stop)), columns=[column])
        cells = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
        for number, text in enumerate(cells, start=piece.line + 1):
            blank = text is None or (isinstance(text, str) and is_blank(text))
            yield "" if blank else TableRow(table, (column,), number, (text,)).text(0, "Give column=...")


def _lines(piece: Piece) -> Iterator[str]:
    with Path(piece.path).open("rb") as file:
        file.seek(piece.start)
        for number, raw in enumerate(islice(file, piece.rows), start=piece.line + 1):
            yield decoded(Path(piece.path), number, raw.removeprefix(BOM_UTF8) if number == 1 else raw)
