"""What ``bertflow tokens`` prints: the tokens of texts, the parts of their input embeddings, or a vocabulary."""

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from bertflow.cli.printing import print_lines, print_table
from bertflow.encoder.embedded import embedded_encoder
from bertflow.files import to_json
from bertflow.tables import MISSING, Table
from bertflow.words.encoder import WordEncoder
from bertflow.words.rows import InputRows, RowPair, take_apart
from bertflow.words.vocabulary import KINDS, Vocabulary, read_vocabulary

EXAMPLES = 8
"""Tokens of each kind that are shown."""
COMPARED = {
    "row": "row of layer 0",
    "word": "word part",
    "same_position": "same position",
    "same_segment": "and same segment",
}
"""Columns of the table of pieces that stand in two places."""


def run_tokens(options: argparse.Namespace) -> int:
    """Carry out what the command line asks for; returns the exit code."""
    out = Console()
    encoder = WordEncoder(options.model or embedded_encoder(), options.revision)
    if options.vocabulary:
        vocabulary = read_vocabulary(encoder.tokenizer)
        record, show = vocabulary_record(vocabulary), lambda: _show_vocabulary(out, vocabulary)
    else:
        texts = [options.pair] if options.pair else [(text, None) for text in options.texts]
        rows = take_apart(encoder, [encoder.tokenize(text, second, options.segment) for text, second in texts])
        record, show = rows_record(rows), lambda: _show_rows(out, rows)
    if options.json:
        print(to_json({"encoder": encoder.describe()} | record), end="")
    else:
        show()
    return 0


def vocabulary_record(vocabulary: Vocabulary) -> dict[str, Any]:
    """A vocabulary, ready for JSON."""
    return {
        "size": vocabulary.size,
        "mark": vocabulary.mark and {"sign": vocabulary.mark.sign, "goes_on": vocabulary.mark.goes_on},
        "special": dict(vocabulary.special),
        "kinds": {
            kind: {"what": KINDS[kind], "count": len(tokens), "examples": vocabulary.examples(kind, EXAMPLES)}
            for kind, tokens in vocabulary.tokens.items()
        },
        "lengths": {
            group: {str(length): count for length, count in counts.items()}
            for group, counts in vocabulary.lengths.items()
        },
    }


def rows_record(rows: InputRows) -> dict[str, Any]:
    """Texts taken apart, ready for JSON."""
    return {
        "hidden_states": dict(zip(("layers", "texts", "tokens", "dim"), rows.states, strict=True)),
        "parts": [name for name in rows.norms if name != "layer 0"],
        "absent": list(rows.absent),
        "difference_from_layer_0": rows.difference,
        "texts": [
            {"text": list(tokens.texts), "tokens": [_token(rows, row, at) for at in range(rows.states[2])]}
            for row, tokens in enumerate(rows.texts)
        ],
        "compared": [
            {"piece": pair.piece, "places": [list(pair.first), list(pair.second)]}
            | {name: getattr(pair, name) for name in COMPARED}
            for pair in rows.pairs
        ],
    }


def _token(rows: InputRows, row: int, at: int) -> dict[str, Any]:
    """One token; of padding, what the model sees. None is what the model is not told."""
    if at >= len(rows.texts[row]):
        return {"piece": None, "id": int(rows.batch.ids[row, at]), "mask": 0}
    return {
        "piece": rows.texts[row].pieces[at],
        "id": int(rows.batch.ids[row, at]),
        "segment": None if "segment" in rows.absent else int(rows.batch.segments[row, at]),
        "position": None if "position" in rows.absent else int(rows.positions[row, at]),
        "mask": 1,
        "norms": {name: float(norm[row, at]) for name, norm in rows.norms.items()},
    }


def _show_rows(out: Console, rows: InputRows) -> None:
    for row, tokens in enumerate(rows.texts):
        print_lines(out, [f"{row + 1}: {' | '.join(tokens.texts)}"])
        header = ("token", "piece", "id", "segment", "position", "mask", *(f"|{name}|" for name in rows.norms))
        lines = [_line(_token(rows, row, at), at, len(header)) for at in range(rows.states[2])]
        print_table(out, Table(header, tuple(lines)))
    parts = [name for name in rows.norms if name != "layer 0"]
    layers, texts, length, dim = rows.states
    lacks = f" BERT's sum also has {' and '.join(rows.absent)}, this one has not." if rows.absent else ""
    print_lines(
        out,
        [
            f"Hidden states: {layers} layers x {texts} text{'s' if texts > 1 else ''} x {length} tokens x {dim} "
            "(layer 0 is the embedding layer).",
            f"Input embedding: {' + '.join(parts)}{'' if 'norm' in rows.absent else ', through LayerNorm'}.{lacks} "
            f"Put together again it differs from the model's layer 0 by at most {rows.difference:.1g}.",
        ],
    )
    if rows.pairs:
        _show_pairs(out, rows.pairs)


def _line(token: dict[str, Any], at: int, width: int) -> tuple[str, ...]:
    if not token["mask"]:
        cells = (str(at), "(padding)", str(token["id"]), MISSING, MISSING, "0")
        return (*cells, *(MISSING,) * (width - len(cells)))
    numbers = (MISSING if token[key] is None else str(token[key]) for key in ("id", "segment", "position", "mask"))
    return (str(at), escape(token["piece"]), *numbers, *(f"{norm:.3f}" for norm in token["norms"].values()))


def _show_pairs(out: Console, pairs: Sequence[RowPair]) -> None:
    print_lines(out, ["", "The same piece in two places: the largest difference of"])
    columns = {name: title for name, title in COMPARED.items() if getattr(pairs[0], name) is not None}
    lines = [
        (
            escape(pair.piece),
            *(f"{row + 1}:{at}" for row, at in (pair.first, pair.second)),
            *(_difference(getattr(pair, name)) for name in columns),
        )
        for pair in pairs
    ]
    print_table(out, Table(("piece", "first", "second", *columns.values()), tuple(lines)))


def _difference(value: float) -> str:
    return f"{value:.3f}" if value else "equal"


def _show_vocabulary(out: Console, vocabulary: Vocabulary) -> None:
    size = vocabulary.size
    lines = [
        (KINDS[kind], f"{len(tokens):,}", f"{100 * len(tokens) / size:.1f} %")
        for kind, tokens in vocabulary.tokens.items()
    ]
    print_table(out, Table(("tokens", "count", "share"), (*lines, ("all", f"{size:,}", ""))))
    shown = {kind: "  ".join(vocabulary.examples(kind, EXAMPLES)) for kind in KINDS if kind != "special"}
    print_lines(out, [f"{KINDS[kind]}: {examples}" for kind, examples in shown.items() if examples])
    print_lines(out, ["special tokens: " + ", ".join(f"{role} {token}" for role, token in vocabulary.special.items())])
    words, pieces = vocabulary.lengths["words"], vocabulary.lengths["pieces"]
    lengths = [
        (str(length), f"{words.get(length, 0):,}", f"{pieces.get(length, 0):,}") for length in sorted({*words, *pieces})
    ]
    print_lines(out, ["", f"How many are how long, in characters{_mark(vocabulary)}:"])
    print_table(out, Table(("length", "begin a word", "go on with one"), tuple(lengths)))


def _mark(vocabulary: Vocabulary) -> str:
    if vocabulary.mark is None:
        return ""
    role = "goes on with" if vocabulary.mark.goes_on else "begins"
    return f" without the {vocabulary.mark.sign} of a piece that {role} a word"
