"""What ``bertflow words`` does: measure a study, print its tables and what they say, write its pictures."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console
from rich.markup import escape

from bertflow.cli.printing import print_lines, print_table
from bertflow.encoder.embedded import embedded_encoder
from bertflow.files import to_json, write_json
from bertflow.tables import MISSING, Table
from bertflow.words.compare import Offset, Panel, StudyResult, placed, run_study
from bertflow.words.encoder import WordEncoder
from bertflow.words.study import STATIC, Labels, load_study, word_study

NAMED = 3
"""So many poolings are named in a sentence."""


def run_words(options: argparse.Namespace) -> int:
    """Carry out what the command line asks for; returns the exit code."""
    if options.study:
        study = load_study(options.study, options.segment)
    else:
        study = word_study(options.words, options.sentences, options.segment)
    if options.output:
        from bertflow.cli.words_write import write_pictures  # needs matplotlib: said before the work, not after
    encoder = WordEncoder(options.model or embedded_encoder(), options.revision)
    result = run_study(encoder, study, options.pooling or ())
    out = Console()
    if options.json:
        print(to_json(result.to_dict()), end="")
    else:
        _show(out, result)
    if options.output:
        write_json(options.output / "words.json", result.to_dict())
        pictures = write_pictures(result, options.output, options.format or "png")
        if not options.json:
            print_lines(out, [f"Written: {options.output / 'words.json'} and {len(pictures)} pictures beside it."])
    return 0


def verdicts(result: StudyResult) -> Iterator[str]:
    """What the study says, in sentences, with the figures they rest on."""
    first, *others = result.study.contexts
    for a, b, c in result.study.closer:
        for context in result.study.contexts:
            found = result.closer((a, b, c), context)
            yield f"{context}: the cosine {a} ~ {b} is above {a} ~ {c} {_count(found)}."
    for pair in result.study.followed():
        yield from _against_static(result, pair)
        for other in others:
            yield _between(result, pair, first, other)


def _against_static(result: StudyResult, pair: Labels) -> Iterator[str]:
    """Whether contexts bring two words closer than they are by themselves; nothing to say of one word with itself."""
    static = next(iter(result.panels.values()))[STATIC].of("cosine", pair)
    if placed(static, 1.0) == "below":
        found = [f"in {context!r} {_count(result.moved(pair, STATIC, context))}" for context in result.study.contexts]
        yield f"{' ~ '.join(pair)}: closer than static ({static:.3f}) {'; '.join(found)}."


def _between(result: StudyResult, pair: Labels, first: str, other: str) -> str:
    """Whether two words are closer in one context than in another."""
    pooling, panels = list(result.panels.items())[-1]
    there, here = (panels[context].of("cosine", pair) for context in (other, first))
    return (
        f"{' ~ '.join(pair)}: closer in {other!r} than in {first!r} {_count(result.moved(pair, first, other))}; "
        f"{there:.3f} against {here:.3f} at {pooling}."
    )


def _count(found: Mapping[str, str]) -> str:
    """At how many poolings something is so; and where it is not, while those are few."""
    counts = Counter(found.values())
    parts = [f"at {counts['above']} of {len(found)} poolings"]
    for verdict in ("level", "below"):
        where = [pooling for pooling, is_so in found.items() if is_so == verdict]
        if where:
            names = f" ({' '.join(where)})" if len(where) <= NAMED else ""
            parts.append(f"{verdict} at {len(where)}{names}")
    return ", ".join(parts)


def _show(out: Console, result: StudyResult) -> None:
    print_lines(out, [result.study.title])
    _show_mentions(out, result)
    pairs = {" ~ ".join(pair): pair for pair in result.study.followed()}
    for measure, title in (("cosine", "Cosine"), ("euclidean", "Euclidean distance")):
        print_lines(out, [title])
        _show_by_row(out, result, {name: _entry(measure, pair) for name, pair in pairs.items()})
    for at, names in enumerate(_offset_names(result)):
        print_lines(out, [f"Offsets: {names}"])
        _show_by_row(out, result, {name: _offset(at, read) for name, read in OFFSET_LINES.items()})
    print_lines(out, verdicts(result))


def _show_mentions(out: Console, result: StudyResult) -> None:
    lines = [
        (escape(context), escape(label), escape(" ".join(place.pieces)), ",".join(map(str, place.at)),
         str(place.tokens.segments[0]), escape(place.tokens.texts[0]))
        for context, places in result.places.items()
        for label, place in places.items()
    ]  # fmt: skip
    print_table(out, Table(("context", "label", "pieces", "token", "segment", "sentence"), tuple(lines)))


def _show_by_row(out: Console, result: StudyResult, cells: dict[str, Callable[[Panel], str]]) -> None:
    """A line for each cell and context; a column for the static vectors, as the first pooling reduces, and for each."""
    static = next(iter(result.panels.values()))[STATIC]
    lines = [
        (escape(name), escape(context), cell(static), *(cell(panels[context]) for panels in result.panels.values()))
        for name, cell in cells.items()
        for context in result.study.contexts
    ]
    print_table(out, Table(("", "context", STATIC, *result.panels), tuple(lines)))


def _entry(measure: str, pair: Labels) -> Callable[[Panel], str]:
    return lambda panel: f"{panel.of(measure, pair):.3f}"


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.3f}"


OFFSET_LINES: dict[str, Callable[[Offset], float | None]] = {
    "cosine of the two": lambda offset: offset.cosine,
    "length of the first": lambda offset: offset.first,
    "length of the second": lambda offset: offset.second,
    "shorter / longer": lambda offset: offset.ratio,
}
"""What is printed of an offset: the first as vectors, the others as scalars."""


def _offset(at: int, read: Callable[[Offset], float | None]) -> Callable[[Panel], str]:
    return lambda panel: _number(read(panel.offsets[at]))


def _offset_names(result: StudyResult) -> list[str]:
    panel = next(iter(result.panels.values()))[STATIC]
    return [
        f"{' - '.join(offset.labels[:2])} and {' - '.join(offset.labels[2:])}, as vectors and as scalars"
        for offset in panel.offsets
    ]
