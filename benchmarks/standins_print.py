"""The tables of standins.py: similarity, search, what was held and missed, joined layers."""

from collections.abc import Iterator, Mapping, Sequence

from material import SEARCHED, SETTINGS
from study import Row, table, with_interval

STS, SEARCH = SETTINGS[:2], SEARCHED
RECIPES = ("similarity", "both", "search")
ABOVE = (
    "Inner layers of a tuned MiniLM standing in for a raw BERT; BERT-base not run here; "
    "the paper's Table 2 not reproduced."
)


def to_markdown(every: Sequence[Row]) -> str:
    """A table for STS, one for search, what was missed, and a table for joined layers."""
    rows, pairs = ([row for row in every if kind in row] for kind in ("stand-in", "layers"))
    said = "Recipes are a mean over seeds, ± their standard deviation (number of seeds). Intervals are 95 %."
    text = "\n".join([ABOVE, "", said, "", ""])
    for title, settings, recipe in (("Similarity", STS, "similarity"), ("Search", SEARCH, "search")):
        text += f"## {title}\n\n{_table([row for row in rows if row['setting'] in settings], recipe)}"
    text += "\n".join(["## Held and missed", "", *(f"* {one}" for one in judged(rows)), "", ""])
    lines = []
    for row in pairs:
        for name in dict.fromkeys(name.split(",", 1)[0] for name in row["values"]):
            values = {key: f"{value:.1f}" for key, value in row["values"].items() if key.split(",", 1)[0] == name}
            alone = ", ".join(value for key, value in values.items() if key not in (name, f"{name}, reduced"))
            lines.append((row["layers"], row["setting"], name, values[name], values[f"{name}, reduced"], alone))
    header = ("layers", "setting", "purpose", "joined", "reduced to the width of one", "each layer alone")
    return f"{text}## Joined layers, each calibrated alone by the closed form of the recipe\n\n{table(header, lines)}"


def short(rows: Sequence[Row]) -> Iterator[str]:
    """A row a stand-in, for docs/results.md: STS transductive / inductive, and hits with a fit on other docstrings."""
    columns = [(STS, name) for name in ("raw", "closed", "similarity", "both")]
    columns += [(SEARCH[1:], name) for name in ("raw", "closed", "similarity", "both", "search")]
    named = {(STS, "raw"): "STS: raw", (SEARCH[1:], "raw"): "search: raw"}
    heads = (named.get(column, "closed form" if column[1] == "closed" else f"`{column[1]}`") for column in columns)
    values = {(row["stand-in"], row["setting"]): row["values"] for row in rows}
    yield f"| | {' | '.join(heads)} |"
    yield "|---" + "|---:" * len(columns) + "|"
    for stand_in in dict.fromkeys(row["stand-in"] for row in rows):
        found = [[values.get((stand_in, one), {}).get(name) for one in settings] for settings, name in columns]
        cells = [" / ".join("-" if one is None else f"{one:.1f}" for one in cell) for cell in found]
        yield f"| {stand_in} | {' | '.join(cells)} |"


STAND_INS = {
    "L0": "MiniLM, embedding layer",
    "L1L2": "MiniLM, blocks 1 and 2",
    "L3": "MiniLM, block 3",
    "CLS3": "MiniLM, [CLS] of block 3",
    "MLM4": "a small plain BERT",
    "RoBERTa": "a small plain RoBERTa",
    "SimCSE": "MiniLM, blocks 1 to 3 after SimCSE",
    "last": "MiniLM, all blocks (tuned for sentences)",
    "first-last": "MiniLM, first and last block",
    "bm25": "words in common (BM25), without an encoder",
}
README = ("L1L2", "MLM4", "RoBERTa", "last", "bm25")
"""Stand-ins of the README's table; docs/results.md has all of them."""


def brief(rows: Sequence[Row]) -> Iterator[str]:
    """A row for each of ``README``: fitted on other text."""
    columns = [(STS[1], name) for name in ("raw", "closed", "similarity")]
    columns += [(SEARCH[1], name) for name in ("raw", "closed", "search")]
    values = {(row["stand-in"], row["setting"]): row["values"] for row in rows}
    yield "| encoder | STS: raw | STS: closed form | STS: flow | search: raw | search: closed form | search: flow |"
    yield "|---" + "|---:" * len(columns) + "|"
    for stand_in in README:
        found = [values.get((stand_in, setting), {}).get(system) for setting, system in columns]
        yield f"| {STAND_INS[stand_in]} | {' | '.join('-' if one is None else f'{one:.1f}' for one in found)} |"


def _table(rows: Sequence[Row], recipe: str) -> str:
    systems = ("raw", "closed", "hindsight", *RECIPES)
    pairs = (f"{recipe} - closed", f"{recipe} - {recipe}, linear", f"both - {recipe}")
    titles = ("raw", "best closed form (chosen)", "in hindsight", *systems[3:])
    lines = []
    for row in rows:
        values = {name: f"{value:.1f}" for name, value in row["values"].items()}
        for name in {"closed", "hindsight"} & values.keys():
            values[name] += f" ({' '.join(row[name])})"
        for name in [name for name in systems[3:] if name in values]:
            alone = row["did"].get("similarity" if name == "default-1" else name) == "left alone"
            spread, n = row["spread"].get(name), row["seeds"].get(name)
            values[name] += " (left alone)" if alone else f" ± {spread:.2f} ({n})" if spread else f" ({n})"
        gaps = [row["differences"].get(pair) for pair in pairs]
        cells = [values.get(name, "-") for name in systems] + [with_interval(*gap, 2) if gap else "-" for gap in gaps]
        lines.append((row["stand-in"], row["setting"], *cells))
    return table(("stand-in", "setting", *titles, *pairs), lines)


JUDGED: Mapping[str, tuple[Sequence[str], str, float]] = {
    "`similarity` is not separably below the closed form that was chosen": (STS, "similarity - closed", 0.0),
    "`search` is not separably below the closed form that was chosen": (SEARCH, "search - closed", 0.0),
    "`both` is at most 1 point below `similarity`": (STS, "both - similarity", -1.0),
    "`both` is at most 1.5 hits below `search`": (SEARCH, "both - search", -1.5),
}
"""What was wanted: settings, a difference, and its bound; 0 for the upper end of its interval."""


def judged(rows: Sequence[Row]) -> Iterator[str]:
    """For each of ``JUDGED`` how often it holds, and where it does not."""
    for said, (settings, pair, bound) in JUDGED.items():
        asked = [row for row in rows if row["setting"] in settings and pair in row["differences"]]
        gaps = [row["differences"][pair] for row in asked]
        missed = [
            f"{row['stand-in']} {row['setting']} {gap:+.2f} [{low:+.2f}, {high:+.2f}]"
            for row, (gap, low, high) in zip(asked, gaps, strict=True)
            if (gap if bound else high) < bound
        ]
        yield f"{said}: in {len(asked) - len(missed)} of {len(asked)}. Missed: {'; '.join(missed) or 'none'}."
