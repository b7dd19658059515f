"""The ledger as Markdown: a table, then why some claims cannot be tested."""

from collections.abc import Mapping, Sequence
from typing import Any

from claims_rules import FAILS, HOLDS, SUBJECTS, UNTESTED, Untested, result_from, spelled
from claims_table import CLAIMS

MARKS = {HOLDS: "holds", FAILS: "**fails**", UNTESTED: "untested"}
"""Verdicts, as the table spells them."""
HEAD = """# Claims

What the papers and tutorials of this field claim, and whether it holds on the encoders at hand: inner layers of a tuned
MiniLM standing in for a raw BERT (layers 0 to 3; scores: `mean(1,2)`); its last layers (4 to 6; scores: `mean(6)`),
which are tuned for sentences; MLM4, a small plain BERT (layers 0 to 4; scores: `mean(1,-1)`). The first two are one
model; BERT-base was not run here.
"""
RULE = """A claim **holds** where the whole 95 % interval of its effect lies beyond the boundary, it **fails**
where none of it does, and it is **untested** where the interval holds the boundary, or for a reason below, by number.
A number without an interval is not an estimate from a sample. Intervals cover the choice of pairs, sentences or words,
not that of the encoder or of a flow's seed. The rule is code (`claims_rules.py`), as is what measures each effect.

Scores of layers, poolings, isotropy and likelihood are of the 2,565 pairs of STS-B test and STS16, those of calibrators
of all seven STS test sets. `claims.json` has the numbers behind each effect, and how many there were.
"""


def to_markdown(ledger: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page."""
    counted = {part: _count(ledger, part) for part in SUBJECTS}
    lines = [HEAD, RULE, f"{len(ledger)} claims:\n"]
    lines += [f"* {SUBJECTS[part]}: {said}" for part, said in counted.items()]
    reasons = _lacking(ledger)
    lines += ["", *_table(ledger, reasons), "", "## What cannot be tested here", ""]
    lines += [f"{number}. {reason[:1].upper()}{reason[1:]}." for number, reason in enumerate(reasons, 1)]
    lines += ["", *_conditions(ledger)]
    return "\n".join(lines) + "\n"


def _count(ledger: Mapping[str, Mapping[str, Any]], part: str) -> str:
    verdicts = [one["results"][part]["verdict"] for one in ledger.values()]
    return ", ".join(f"{verdicts.count(name)} {mark.replace('*', '')}" for name, mark in MARKS.items())


def _table(ledger: Mapping[str, Mapping[str, Any]], reasons: Sequence[str]) -> list[str]:
    titles = ["claim", "source", "effect", *SUBJECTS.values()]
    lines = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
    for name, kept in ledger.items():
        claim = CLAIMS[name]
        beyond = f"{claim.effect}; {claim.side} {claim.boundary:g}"
        cells = [claim.says, claim.source, beyond, *(_cell(kept["results"][part], reasons) for part in SUBJECTS)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(found: Mapping[str, Any], reasons: Sequence[str]) -> str:
    result, mark = result_from(found), MARKS[found["verdict"]]
    return (
        f"{mark} ({reasons.index(result.reason) + 1})" if isinstance(result, Untested) else f"{mark}: {spelled(result)}"
    )


def _lacking(ledger: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The reasons other than an interval that holds the boundary."""
    results = (result_from(kept["results"][part]) for kept in ledger.values() for part in SUBJECTS)
    return list(dict.fromkeys(result.reason for result in results if isinstance(result, Untested)))


def _conditions(ledger: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each set of conditions."""
    found: dict[str, int] = {}
    for kept in ledger.values():
        one = kept["conditions"]
        versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
        encoders = ", ".join(f"{name} {digest[:12]}" for name, digest in one["encoders"].items())
        said = f"seed {one['seed']}, {one['resamples']} resamples; {versions}; weights {encoders}"
        found[said] = found.get(said, 0) + 1
    seconds = sum(kept["cpu_seconds"] for kept in ledger.values())
    lines = [f"Conditions of {n} claims: {said}." for said, n in found.items()]
    return [*lines, f"CPU time, embeddings of the seven test sets and of other text made before: {seconds:.0f} s."]
