"""``bertflow.paper_tables``: tables 2 and 3 of Li et al. 2020 on weights of your own, with several seeds.

    lines (``paper_lines``), made one by one, in any order, by any number of jobs
    -> how similar each finds the pairs -> means over seeds, intervals of pairs and seeds, the published figures beside

The protocol is the paper's: Spearman of the cosine, STS12-16 as the mean over their sub-sets weighted by their pairs,
64 tokens a sentence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertflow.data.pairs import Pairs
from bertflow.data.sts import StsSource, load_sts
from bertflow.data.sts_tasks import task_title
from bertflow.errors import MOST_RESAMPLES, DataError, UsageError, require_between
from bertflow.evaluation.aggregation import ScoredTask, suite_figures, task_figures
from bertflow.evaluation.seeds import SeveralSeeds, spread
from bertflow.evaluation.significance import Figure
from bertflow.opening import load
from bertflow.places import require_files, require_place
from bertflow.registry import lookup, several
from bertflow.results import AbstractResult, Parts
from bertflow.studies.literature import published, with_subsets
from bertflow.studies.paper_lines import (
    MAX_LENGTH,
    PAPER_TASKS,
    SIZES,
    LineMaker,
    PaperLine,
    paper_lines,
    shape_of,
)
from bertflow.tables import MISSING, Section, Table, interval, number

SUITE, AGGREGATION, METRIC = "sts7", "wmean", "cosine_spearman"


@dataclass(frozen=True)
class PaperScore:
    """A line on one task, or the mean over tasks; correlations in [-1, 1].

    Attributes:
        task: The task, or the suite.
        values: Value of each seed; a single one without a flow.
        mean: Over the seeds.
        standard_deviation: Over the seeds, with n - 1: that of one fit; None of a single value.
        ci_low: Lower end of the 95 % interval of the mean, over pairs and seeds; None without resamples.
        ci_high: Upper end.
        difference: The mean less the same encoder without the flow (last2avg); None of lines without a flow.
        difference_low: Lower end of its 95 % interval, which is paired.
        difference_high: Upper end.
        published: The published figure.
    """

    task: str
    values: tuple[float, ...]
    mean: float
    standard_deviation: float | None
    ci_low: float | None
    ci_high: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    published: float

    def cell(self) -> str:
        """Mean and standard deviation, x 100."""
        spread = "" if self.standard_deviation is None else f" ± {number(self.standard_deviation)}"
        return f"{number(self.mean)}{spread}"

    def difference_cell(self) -> str:
        """The difference with its interval, x 100."""
        ends = interval(self.difference_low, self.difference_high)
        return f"{number(self.difference)}{'' if ends == MISSING else f' ({ends})'}"


@dataclass(frozen=True)
class PaperRow:
    """All seeds of a line.

    Attributes:
        table: 2 or 3.
        name: What tables call it.
        published: The published line beside it.
        flow: Whether it has a flow.
        scores: Scores by task, the mean over all last.
    """

    table: int
    name: str
    published: str
    flow: bool
    scores: tuple[PaperScore, ...]


@dataclass(frozen=True, repr=False)
class PaperTables(AbstractResult):
    """Our lines with the published ones.

    Attributes:
        rows: Our lines.
        seeds: Number of seeds of each flow.
        max_sentences: Size of the sample that each flow was fitted on; None for all.
        resamples: How often pairs and seeds were resampled.
        notes: How the numbers were made, and what is left out.
    """

    rows: tuple[PaperRow, ...]
    seeds: int
    max_sentences: int | None
    resamples: int
    notes: tuple[str, ...]

    title = "Tables 2 and 3 of Li et al. 2020"
    format = 1

    def parts(self) -> Parts:
        """Each table, what the flows add, and how the numbers were made."""
        header = ("line", *(task_title(score.task) for score in self.rows[0].scores))
        for table in dict.fromkeys(row.table for row in self.rows):
            lines: list[tuple[str, ...]] = []
            for row in self.rows:
                if row.table == table:
                    lines.append((row.name, *(score.cell() for score in row.scores)))
                    theirs = (number(score.published) for score in row.scores)
                    lines.append((f"  published: {row.published}", *theirs))
            yield Section(f"Table {table}", Table(header, tuple(lines)))
        flows = [(row.name, *(score.difference_cell() for score in row.scores)) for row in self.rows if row.flow]
        yield Section("What each flow adds to last2avg of the same encoder", Table(header, tuple(flows)))
        yield from self.notes


@dataclass(frozen=True, repr=False)
class PaperPlan(AbstractResult):
    """The lines of the tables, and which of them are done.

    Attributes:
        lines: Number, name and seed of each.
        done: Numbers of those that are done.
    """

    lines: tuple[PaperLine, ...]
    done: tuple[int, ...]

    def parts(self) -> Parts:
        """A line each, and how the others are made."""
        rows = ((str(line.number), line.system, "done" if line.number in self.done else "-") for line in self.lines)
        yield Table(("line", "system", "state"), tuple(rows))
        yield f"{len(self.done)} of {len(self.lines)} lines are done."
        if len(self.done) < len(self.lines):
            yield "--line K makes one of the others; without --line and --list all of them are made, and the tables."


def make_tables(
    models: list[str] | str,
    data_dir: str,
    output: str | Path,
    nli: list[str] | str | None,
    nli_models: list[str] | str | None,
    tasks: str,
    seeds: int,
    line: int | None,
    show_lines: bool,
    max_sentences: int | None,
    resamples: int,
    device: str,
    progress: bool | None,
    say: Callable[[str], object] | None,
) -> PaperTables | PaperPlan:
    """See ``bertflow.paper_tables``."""
    require_between(1, seeds=seeds)
    require_between(2, max_sentences=max_sentences)
    require_between(0, MOST_RESAMPLES, resamples=resamples)
    require_place(output, folder=True)
    plain, tuned, text = (tuple(several(given)) for given in (models, nli_models, nli))
    require_files(*text)
    given = StsSource(tasks, data_dir)
    for task in given.names:
        lookup("task of the tables", dict.fromkeys(PAPER_TASKS), task)
    for model in (*plain, *tuned):
        load(model, pooling="first-last-avg", max_length=MAX_LENGTH, device=device)
    lines = paper_lines(plain, tuned, seeds, bool(text))
    if line is not None and show_lines:
        raise UsageError("A line is made, or all are shown, but both were asked for. Leave one out.")
    require_between(1, len(lines), line=line)
    in_order = tuple(sorted(given.names, key=PAPER_TASKS.index))
    tell = say or (lambda words: None)
    maker = LineMaker(Path(output), data_dir, in_order, text, max_sentences, device, progress)
    sets = {task: with_subsets(load_sts(task, data_dir), AGGREGATION) for task in (() if show_lines else in_order)}
    for one in () if show_lines else lines if line is None else (lines[line - 1],):
        if missing := maker.missing(one):
            tell(f"line {one.number} of {len(lines)}: {one.system}, {', '.join(map(task_title, missing))}")
            maker.make(one)
    if show_lines or line is not None:
        return PaperPlan(lines, tuple(one.number for one in lines if not maker.missing(one)))
    notes = _notes(lines, maker, " and ".join(dict.fromkeys(pairs.text_form for pairs in sets.values())))
    tables = PaperTables(tuple(_rows(lines, maker, sets, resamples)), seeds, max_sentences, resamples, notes)
    tell(f"written   {tables.save(output) / 'paper_tables.md'}")
    return tables


def _rows(
    lines: Sequence[PaperLine], maker: LineMaker, sets: Mapping[str, Pairs], resamples: int
) -> Iterator[PaperRow]:
    """All lines with the means over their seeds, which are resampled beside the pairs.

    Raises:
        DataError: If the pairs are not those that a line has scored.
    """
    scored, records = [], [maker.found(line) for line in lines]
    for task, pairs in sets.items():
        for line, record in zip(lines, records, strict=True):
            if record.pairs.get(task) != pairs.digest():
                raise DataError(
                    f"{maker.folder(line)} has scored other pairs of {task} than those of {pairs.source}. Give the "
                    "same data, or delete the folder: the line is then made again."
                )
        scored.append(ScoredTask(pairs, "cosine", np.array([record.similarities[task] for record in records])))
    figures = [one for task in scored for one in task_figures(task, resamples, 0)]
    if set(sets) == set(PAPER_TASKS):
        figures += suite_figures(SUITE, scored, resamples, 0)
    figures = [one for one in figures if (one.aggregation, one.metric, one.subset) == (AGGREGATION, METRIC, "")]
    systems, names = [line.system for line in lines], dict.fromkeys(line.name for line in lines)
    groups = {name: [line for line in lines if line.name == name] for name in names}  # all seeds of a flow together
    for name, group in groups.items():
        several = SeveralSeeds(name, (), tuple(line.system for line in group))
        figures = [several.with_mean(figure, systems, 0) for figure in figures]
        systems.append(f"mean of {name}")
    theirs = {line.model: line for line in published() if line.aggregation == AGGREGATION}

    def score(figure: Figure, group: Sequence[PaperLine]) -> PaperScore:
        at, first = systems.index(f"mean of {group[0].name}"), group[0]
        values = tuple(float(figure.values[systems.index(line.system)]) for line in group)
        printed = round(theirs[first.published].score(figure.task) / 100, 6)
        mean = float(figure.values[at])
        less: tuple[float | None, float | None, float | None] = (None, None, None)
        if first.flow:
            other = systems.index(f"mean of {Path(first.model).name} last2avg")
            less = (mean - float(figure.values[other]), *figure.interval(at, less=other))
        return PaperScore(figure.task, values, mean, spread(values), *figure.interval(at), *less, printed)

    for group in groups.values():
        first, scores = group[0], tuple(score(figure, group) for figure in figures)
        yield PaperRow(first.table, first.name, first.published, bool(first.flow), scores)


def _notes(lines: Sequence[PaperLine], maker: LineMaker, forms: str) -> tuple[str, ...]:
    """How the numbers were made from text of these forms, and what is left out."""
    seeds = max(0 if line.seed is None else line.seed + 1 for line in lines)
    others = [model for model in dict.fromkeys(line.model for line in lines) if shape_of(model) not in SIZES]
    notes = [
        "Spearman of the cosine x 100; of STS12-16 the mean over sub-sets weighted by their pairs (wmean); at most "
        f"{MAX_LENGTH} tokens; {forms} text, where the paper read STS12-16 as SentEval tokenized it.",
        "The flow as released: presets paper-tf and paper-tf-nli, the encoder in the loop with its dropout on. "
        "flow (target) is fitted on the unlabeled sentences of the scored task (transductive).",
        f"± is the standard deviation over {seeds} seeds of the flow, with n - 1; intervals are 95 %, of pairs and of "
        "seeds."
        if seeds > 1
        else "One seed of each flow: its spread is not known; 95 % intervals are of pairs.",
    ]
    if maker.max_sentences:
        notes.append(f"Rehearsal: every flow was fitted on {maker.max_sentences:,} sentences.")
    notes += [
        f"{Path(model).name} is neither BERT-base nor BERT-large: it is another encoder, so the published figures, "
        "those of BERT-base, are no reference for it."
        for model in others
    ]
    if all(line.flow != "nli" for line in lines):
        notes.append("flow (NLI) is left out: give NLI sentences with nli.")
    left_out = {2: "give encoders", 3: "give encoders fine-tuned on NLI with nli_models"}
    made = {line.table for line in lines}
    notes += [f"Table {table} is left out: {what}." for table, what in left_out.items() if table not in made]
    return tuple(notes)
