"""The texts of the harm suite: what users search, sort and compare, with queries in other words.

Most texts are generated: a grammar in ``harm_words/<text>.toml`` for each half. A value of a grammar is a list of
alternatives, separated by bars or lines; a template names other lists in braces. In one text

    {noun}       is one alternative of ``noun``, of the kind's own list if it has one; the same wherever it stands again
    {noun2}      is another one
    {Noun}       begins with a capital
    {noun^}      is written InThisWay where the list has in_this_way
    {1-99}       is a number (with leading zeros where the first bound has some), {x8} eight hexadecimal digits

and an alternative "a man ~ a guy" may be said in either way, each time anew: that makes two texts that mean the same.
The halves, which are five, share neither content words nor templates: what is chosen on one is reported on another.
The texts that stand on the machine itself are in ``harm_real.py``.
"""

import random
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import harm_real
from harm_real import HALVES as HALVES
from harm_real import data_dir as data_dir

WORDS = Path(__file__).parent / "harm_words"
DOCUMENTS, QUERIES, PAIRS = 2_000, 700, 800
PAIRED = {"captions", "tickets"}
"""Texts whose meaning can be said twice."""
SLOT = re.compile(r"\{([A-Za-z]\w*\^?|\d+-\d+)\}")
Tables = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Text:
    """A text to fit on, and what it is used for.

    Attributes:
        documents: Texts to fit on, and to search among.
        kinds: Label of each document, for neighbours of one kind; empty where there are none.
        queries: Queries, in other words than the documents.
        right: For each query the number of its one right document, or the label of the kind that is right.
        pairs: Two texts, and 1.0 if they mean the same else 0.0, or a score in [0, 5]; may be empty.
        columns: First column of each document where the text is a table (name, text); empty for plain lines.
    """

    documents: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    right: tuple[int, ...] | tuple[str, ...] = ()
    pairs: tuple[tuple[str, str, float], ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def overlaps(self) -> list[float]:
        """Share of each query's distinct words that stand in a right document, in the mean over these."""
        documents = [words_of(document) for document in self.documents]
        of_kind: dict[str | int, list[set[str]]] = {}
        for number, document in enumerate(documents):
            of_kind.setdefault(self.kinds[number] if self.kinds else number, []).append(document)
            of_kind[number] = [document]
        queries = map(words_of, self.queries)
        return [
            fmean(len(query & document) / len(query) for document in of_kind[right])
            for query, right in zip(queries, self.right, strict=True)
        ]

    @property
    def overlap(self) -> float:
        """Mean of ``overlaps``."""
        return fmean(self.overlaps)


def words_of(text: str) -> set[str]:
    """Distinct words, in lower case."""
    return set(re.findall(r"[^\W_]+", text.lower()))


@dataclass(frozen=True)
class Grammar:
    """Lists of one half, and of each of its kinds together with these."""

    shared: Tables
    kinds: Mapping[str, Tables]


@cache
def grammar(name: str, half: str) -> Grammar:
    """The grammar of one half of a text."""
    tables = tomllib.loads((WORDS / f"{name}.toml").read_text("utf-8"))[half]
    kinds = tables.pop("kinds")
    shared = _split(tables)
    return Grammar(shared, {kind: {**shared, **_split(own)} for kind, own in kinds.items()})


def _split(lists: Mapping[str, str]) -> Tables:
    return {
        name: tuple(part.strip() for part in re.split(r"[|\n]", alternatives) if part.strip())
        for name, alternatives in lists.items()
    }


def filled(template: str, tables: Tables, bound: dict[str, str], rng: random.Random) -> str:
    """A template with its slots filled; ``bound`` keeps what was drawn for each."""

    def value(slot: re.Match[str]) -> str:
        key = slot[1].rstrip("^").lower()
        if key not in bound:
            bound[key] = _drawn(key, tables, set(bound.values()), rng)
        said = filled(rng.choice(bound[key].split("~")).strip(), tables, bound, rng)
        if slot[1].endswith("^"):
            return "".join(part[:1].upper() + part[1:] for part in said.split("_"))
        return said[:1].upper() + said[1:] if slot[1][0].isupper() else said

    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", SLOT.sub(value, template))


def _drawn(key: str, tables: Tables, taken: set[str], rng: random.Random) -> str:
    if key[0].isdigit():
        low, high = key.split("-")
        return str(rng.randint(int(low), int(high))).zfill(len(low))
    if re.fullmatch(r"x\d+", key):
        return "".join(rng.choices("0123456789abcdef", k=int(key[1:])))
    return rng.choice([one for one in tables[key.rstrip("0123456789")] if one not in taken])


def generated(name: str, half: str, seed: int, *, n: int = DOCUMENTS, table: bool = False) -> Text:
    """A text of a grammar; as many documents and queries of each kind, within one.

    Args:
        name: File of the grammar.
        half: One of ``HALVES``.
        seed: The same seed makes the same text.
        n: How many documents.
        table: Whether names and descriptions are two columns.
    """
    rng = random.Random(f"{name}/{half}/{seed}/{table}")
    kinds, n = grammar(name, half).kinds, int(grammar(name, half).shared.get("lines", [n])[0])
    texts: dict[str, tuple[str, str]] = {}  # kind and first column
    for kind in _in_turn(kinds, n, rng):
        _add(texts, kinds[kind], ("description" if table else "document"), kind, rng)
    queries: dict[str, tuple[str, str]] = {}
    if "query" in next(iter(kinds.values())):
        for kind in _in_turn(kinds, QUERIES, rng):
            _add(queries, kinds[kind], "query", kind, rng)
    return Text(
        tuple(texts),
        tuple(kind for kind, _ in texts.values()),
        tuple(queries),
        tuple(kind for kind, _ in queries.values()),
        tuple(_pairs(kinds, rng)) if name in PAIRED else (),
        tuple(column for _, column in texts.values()) if table else (),
    )


def _in_turn(kinds: Mapping[str, Tables], n: int, rng: random.Random) -> list[str]:
    """So many kinds, each as often as the others, shuffled."""
    drawn = [kind for _ in range(-(-n // len(kinds))) for kind in kinds][:n]
    rng.shuffle(drawn)
    return drawn


def _add(texts: dict[str, tuple[str, str]], tables: Tables, what: str, kind: str, rng: random.Random) -> None:
    """Add a text that is not there yet."""
    for _ in range(1_000):
        bound: dict[str, str] = {}
        text = filled(rng.choice(tables[what]), tables, bound, rng)
        if text not in texts:
            texts[text] = (kind, filled(rng.choice(tables["column"]), tables, bound, rng) if "column" in tables else "")
            return
    raise AssertionError(f"the kind {kind!r} has too few alternatives for another {what}")


def _pairs(kinds: Mapping[str, Tables], rng: random.Random) -> list[tuple[str, str, float]]:
    """Half of the pairs say one thing twice, half two things, every other one of these of one kind."""
    pairs: list[tuple[str, str, float]] = []
    while len(pairs) < PAIRS:
        kind, other = rng.sample(sorted(kinds), 2)
        same = len(pairs) % 2 == 0
        if same or len(pairs) % 4 == 1:
            other = kind
        bound: dict[str, str] = {}
        second_bound = bound if same else {}
        first, second = (
            filled(template, kinds[of], drawn, rng)
            for template, of, drawn in zip(
                rng.sample(kinds[kind]["document"], 2), (kind, other), (bound, second_bound), strict=True
            )
        )
        meant = [{value for value in drawn.values() if "~" in value} for drawn in (bound, second_bound)]
        if first != second and (same or not meant[0] & meant[1]):
            pairs.append((first, second, float(same)))
    return pairs


def questions(half: str, seed: int) -> Text:
    """Facts, each of one thing and one property of it, and questions that name both in other words."""
    rng = random.Random(f"questions/{half}/{seed}")
    found = grammar("questions", half)
    things = [thing.split("=") for thing in found.shared["thing"]]
    facts = [(thing, asked, tables) for thing, asked in things for tables in found.kinds.values()]
    rng.shuffle(facts)
    facts = facts[:1_500]
    documents, queries = (
        [
            filled(rng.choice(tables[what]), tables, {"thing": thing.strip(), "asked": asked.strip()}, rng)
            for thing, asked, tables in facts
        ]
        for what in ("answer", "question")
    )
    numbers = list({query: number for number, query in enumerate(queries)}.values())[:QUERIES]
    return Text(tuple(documents), queries=tuple(queries[k] for k in numbers), right=tuple(numbers))


def _real(read: Callable[[str, int], Mapping[str, tuple] | None], half: str, seed: int) -> Text | None:
    found = read(half, seed)
    return None if found is None else Text(**found)


TEXTS: Mapping[str, Callable[[str, int], Text | None]] = {
    "catalogue": partial(generated, "catalogue"),
    "catalogue-table": partial(generated, "catalogue", table=True),
    "tickets": partial(generated, "tickets"),
    "questions": questions,
    "captions": partial(generated, "captions"),
    "headlines": partial(generated, "headlines"),
    "identifiers": partial(generated, "identifiers"),
    "logs": partial(generated, "logs"),
    "words": partial(generated, "words"),
    "near-duplicates": partial(generated, "near-duplicates", n=2_600),
    "two-languages": partial(generated, "two-languages"),
    "long-and-short": partial(generated, "long-and-short"),
    "broad": partial(_real, harm_real.broad),
    "docstrings": partial(_real, harm_real.docstrings),
    "packages": partial(_real, harm_real.packages),
    "commands": partial(_real, harm_real.commands),
    "messages": partial(_real, harm_real.messages),
}
"""Function of (half, seed) by name; it returns None where the machine lacks the text."""
