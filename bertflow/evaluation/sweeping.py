"""``sweep``: which layer, which pooling, for your encoder and your data.

``poolings`` scores them, ``probing`` and ``tagging`` ask what a classifier reads from them.
A row is a pooling with its value. Rows become a table, a grid of layers by token reductions, and files.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from bertflow.data.conll import is_conll, load_conll
from bertflow.data.corpus import load_labels, load_sentences
from bertflow.data.sts import expand_tasks, load_sts, require_tasks
from bertflow.errors import MissingExtraError, UsageError, require_seed
from bertflow.evaluation.rows import number, setting, task_title
from bertflow.files import require_files, write_text
from bertflow.opening import LoadOptions, require_openable, require_transformer
from bertflow.progress import peak_memory, working
from bertflow.results import AbstractResult
from bertflow.tables import Table, to_csv

if TYPE_CHECKING:
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.evaluation.probing import Probe
    from bertflow.evaluation.tagging import WordProbe

REDUCED = 64
RAW = "raw"
CALIBRATORS = (RAW, "whitening", f"whitening({REDUCED})")
"""What every candidate is scored after."""
WEIGHTED = "weighted mean of all"
METRIC = "cosine_spearman"
AVERAGE = "average"
"""Takes the place of a task where a value is the mean over all of them."""
ALL_BLOCKS = "sif"
"""A pooling that reads the last layer, so that the encoder is loaded once, with all blocks."""


@dataclass(frozen=True)
class Candidate:
    """A pooling that is tried.

    Attributes:
        pooling: A spelling, which ``--pooling`` takes; ``WEIGHTED`` is the one name that it does not.
        tokens: How the tokens of a layer are reduced.
        layers: From 0.
        width: Width of the embeddings; whitening drops null directions.
    """

    pooling: str
    tokens: str
    layers: tuple[int, ...]
    width: int

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        return {**asdict(self), "layers": " ".join(map(str, self.layers))}


@dataclass(frozen=True)
class SweepRow(Candidate):
    """The score of a pooling on a task.

    Attributes:
        calibrator: A row of ``CALIBRATORS``.
        task: On which task; ``AVERAGE`` for the mean over all.
        aggregation: Over the sub-sets of the task.
        n: Pairs.
        value: Spearman of the cosine, in [-1, 1].
        seen: Share of the scored sentences that whitening or token counts were fitted on.
    """

    calibrator: str
    task: str
    aggregation: str
    n: int
    value: float
    seen: float

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        return {**super().as_dict(), "setting": setting(self.seen)}


@dataclass(frozen=True, repr=False)
class AbstractSweep(AbstractResult):
    """Values of poolings: a table, a grid and files.

    Attributes:
        rows: By pooling.
        encoder: The encoder's description, without a pooling.
        scratch_bytes: Disk that the embeddings of all poolings took.
    """

    rows: Sequence[Any]
    encoder: Mapping[str, Any]
    scratch_bytes: int

    name: ClassVar[str] = "sweep"
    format: ClassVar[int | None] = 1
    not_in_json: ClassVar[tuple[str, ...]] = ("scratch_bytes", "seen")
    quantity: ClassVar[str]
    """What a value is."""

    @abstractmethod
    def table(self) -> Table:
        """A line a pooling, x 100."""

    @abstractmethod
    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""

    @abstractmethod
    def cells(self) -> list[tuple[str, Candidate, float]]:
        """What the grid shows: panel, pooling, value x 100."""

    def grid(self) -> tuple[list[int], list[str], dict[str, NDArray[np.float64]]]:
        """The poolings of one layer: layers, token reductions, and a matrix of them by panel; NaN without a score."""
        single = [cell for cell in self.cells() if len(cell[1].layers) == 1]
        layers = sorted({one.layers[0] for _, one, _ in single})
        tokens = list(dict.fromkeys(one.tokens for _, one, _ in single))
        panels = {panel: np.full((len(layers), len(tokens)), np.nan) for panel, _, _ in single}
        for panel, one, value in single:
            panels[panel][layers.index(one.layers[0]), tokens.index(one.tokens)] = value
        return layers, tokens, panels

    def parts(self) -> Iterator[Table | str]:
        """The table, what was best, and how the numbers were made."""
        yield self.table()
        yield from self.summary()

    def run_facts(self) -> dict[str, Any]:
        """Memory and disk that the sweep took."""
        return {"peak_memory_bytes": peak_memory(), "scratch_bytes": self.scratch_bytes}

    def to_csv(self) -> str:
        """A header and a line for each value."""
        records = [row.as_dict() for row in self.rows]
        return to_csv(list(records[0]), [list(record.values()) for record in records])

    @working("drawing")
    def save(self, folder: str | Path) -> Path:
        """Write sweep.json, sweep.md, sweep.csv and, where matplotlib is installed, sweep.png."""
        folder = super().save(folder)
        write_text(folder / "sweep.csv", self.to_csv())
        try:
            from bertflow.plots import heatmaps, save_figure
        except MissingExtraError as error:
            warnings.warn(f"no heatmap was drawn. {error}", stacklevel=2)
            return folder
        layers, tokens, panels = self.grid()
        title = f"{self.quantity}: {self.encoder['encoder']}"
        figure = heatmaps([("", panels)], [f"layer {layer}" for layer in layers], tokens, title)
        save_figure(figure, folder / "sweep.png")
        return folder


@dataclass(frozen=True, repr=False)
class Sweep(AbstractSweep):
    """Scores on STS tasks.

    Attributes:
        rows: By pooling and calibrator, then by task.
        constant: Poolings that give all sentences one vector, so that they have no score.
        sentences: Distinct sentences that were embedded, once.
        fitted_on: What whitening and token counts were fitted on.
        seen: Share of the scored sentences among those.
    """

    rows: tuple[SweepRow, ...]
    constant: tuple[str, ...]
    sentences: int
    fitted_on: str
    seen: float

    title: ClassVar[str] = "Layers and poolings"
    quantity: ClassVar[str] = "Spearman x 100"

    @property
    def shown(self) -> list[SweepRow]:
        """What tables show: the one task, or the average."""
        return [row for row in self.rows if row.task == self.rows[-1].task]

    def best(self) -> list[SweepRow]:
        """The best row of each calibrator."""
        falling = sorted(self.shown, key=lambda row: -row.value)
        names = dict.fromkeys(row.calibrator for row in self.shown)
        return [next(row for row in falling if row.calibrator == name) for name in names]

    def table(self) -> Table:
        """A line a pooling, a column a calibrator, x 100; a dash where there are fewer directions than asked for."""
        found = {(row.pooling, row.calibrator): row.value for row in self.shown}
        lines = [
            (pooling, *(number(found.get((pooling, name)), METRIC) for name in CALIBRATORS))
            for pooling in dict.fromkeys(row.pooling for row in self.shown)
        ]
        return Table(("pooling", *CALIBRATORS), tuple(lines))

    def cells(self) -> list[tuple[str, Candidate, float]]:
        """A panel for each calibrator."""
        return [(row.calibrator, row, 100 * row.value) for row in self.shown]

    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""
        row, tasks = self.shown[0], len({row.task for row in self.rows})
        what = f"average of {tasks - 1} tasks" if row.task == AVERAGE else task_title(row.task)
        return [
            *(f"Best {best.calibrator}: {best.pooling}, {number(best.value, METRIC)}." for best in self.best()),
            f"Spearman of the cosine x 100; {what}, {row.aggregation}, {row.n} pairs; {self.sentences} sentences, "
            f"embedded once; {self.encoder['encoder']}.",
            f"Whitening and the token counts of sif were fitted on {self.fitted_on}: {setting(self.seen)} "
            f"({self.seen:.0%} of the scored sentences seen).",
            *(f"{name} gives every sentence the same vector, so it has no score." for name in self.constant),
        ]


def sweep(
    model: "str | Path | TransformerEncoder",
    layers: list[int] | str | None = None,
    tokens: list[str] | str | None = None,
    tasks: str | None = None,
    data_dir: str | Path | None = None,
    fit_on: Sequence[str] | str | Path | None = None,
    labels: str | Path | None = None,
    columns: list[int] | str | None = None,
    compare: list[str] | str | None = None,
    folds: int | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
    **options: Unpack[LoadOptions],
) -> "Sweep | Probe | WordProbe":
    """Find the layer and the pooling for your encoder and your data.

    Scores every layer and pooling of an encoder on STS tasks, raw and whitened, from one pass over the text. With
    labels, the value is that of a cross-validated linear probe on your own labels, of texts or of words in their
    sentences. Choose on tuning, and report on the test sets.

    Args:
        model: An encoder: hub id or folder.
        layers: Layers to try alone, as 0,3,6 (default: all).
        tokens: Token reductions to try, as mean,cls (default: all; for words mean and cls, the first piece).
        tasks: STS tasks (default: tuning).
        data_dir: Folder of the STS data (default: the hub, at pinned revisions).
        fit_on: Text to fit whitening and token counts on (default: the scored sentences, without their labels).
        labels: Labels for a probe, instead of STS tasks: lines sentence<TAB>label, or a table with text and label; or
            CoNLL columns, the word first and the tag last, with an empty line between sentences.
        columns: Columns of word and tag in CoNLL columns, as 1,2 (default: 1,-1, the first and the last; .conllu: 2,4).
        compare: Calibrators of the word vectors before the probe, such as raw,sn,whitening(64) (default:
            raw,whitening).
        folds: Folds of the probe's cross-validation (default: 5).
        seed: Random seed for the folds, and for the interval of words (default: 0).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        say: Takes a line on time, memory and disk.
        options: ``LoadOptions`` without a pooling.

    Returns:
        All values with their table, and the best of them.

    Raises:
        UsageError: For options that do not go together, or layers that the encoder does not have.
        UnknownNameError: For an unknown token reduction or task.
        DataError: For data that cannot be read, or embeddings that cannot be scored or whitened.
    """
    from bertflow.calibration.spelling import RAW, parse_calibrator, split_spellings
    from bertflow.evaluation.poolings import candidates, open_transformer, sweep_poolings
    from bertflow.evaluation.probing import probe_poolings
    from bertflow.evaluation.tagging import COMPARED, TOKENS, probe_words

    begin = perf_counter()
    _refuse(bool(labels), "STS tasks, which labels does without", tasks=tasks, data_dir=data_dir, fit_on=fit_on)
    _refuse(not labels, "probe, which needs labels", folds=folds, seed=seed)
    require_seed(seed)
    require_folds(2 if folds is None else folds)
    require_files(labels, fit_on)
    words = bool(labels) and is_conll(labels or "")
    _refuse(not words, "probe of words, which needs labels in CoNLL columns", columns=columns, compare=compare)
    if options.get("pooling"):
        raise UsageError("A sweep tries many poolings, so it takes none. Choose among them with layers and tokens.")
    reductions, pair = tokens or (TOKENS if words else None), _two_columns(columns)
    after = split_spellings(compare) if isinstance(compare, str) else compare or COMPARED
    for name in set(after) - {RAW}:
        parse_calibrator(name)
    where = data_dir or "hub"
    if not labels:
        require_tasks(tasks or "tuning", where)
    require_openable(model, **options)
    if isinstance(model, str | Path):
        blocks = require_transformer(model, options.get("revision")).blocks
    else:
        blocks = int(model.describe()["blocks"])
    poolings = candidates(blocks, layers, reductions)
    options["pooling"] = ALL_BLOCKS
    encoder = open_transformer(model, **options) if isinstance(model, str | Path) else model
    result: Sweep | Probe | WordProbe
    if labels and words:
        text = load_conll(labels, pair)
        result = probe_words(encoder, text, poolings, after, 5 if folds is None else folds, seed or 0, progress)
    elif labels:
        labelled = load_labels(labels)
        result = probe_poolings(encoder, labelled, poolings, 5 if folds is None else folds, seed or 0, progress)
    else:
        sets = [load_sts(task, where) for task in expand_tasks(tasks or "tuning", where)]
        fitted_on = load_sentences(fit_on) if isinstance(fit_on, str | Path) else fit_on
        result = sweep_poolings(encoder, sets, poolings, fitted_on, progress)
    if say:
        peak, disk = peak_memory(), round(result.scratch_bytes / 2**20)
        memory = f"at most {round(peak / 2**20)} MiB of memory, " if peak else ""
        say(f"{perf_counter() - begin:.1f} s, {memory}{disk} MiB of scratch files.")
    return result


def _refuse(ignored: bool, theirs: str, **options: Any) -> None:
    """Refuse options that would be ignored."""
    for name, value in options.items():
        if ignored and value is not None:
            raise UsageError(f"The option {name} belongs to the {theirs}. Leave one out.")


def _two_columns(columns: list[int] | str | None) -> list[int] | None:
    if columns is None:
        return None
    try:
        word, tag = map(int, columns.split(",") if isinstance(columns, str) else columns)
    except ValueError:
        raise UsageError(f"columns takes those of word and tag, as 1,2 or 1,-1; got {columns!r}.") from None
    return [word, tag]


def require_folds(folds: int) -> None:
    """Refuse a cross-validation without a fold to hold out.

    Raises:
        UsageError: For fewer than two folds.
    """
    if folds < 2:
        raise UsageError(f"A cross-validation needs two folds or more, got {folds}.")
