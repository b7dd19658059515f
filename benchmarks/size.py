"""How big the house is, room by room, against a budget: `make size`, and `make check`.

    python benchmarks/size.py [--write] [--raise REASON] [--where WORD]

lines    of code, without docstrings, comments, blank lines and imports
tokens   of those lines; an f-string is one token, as any other string
form     of the whole package: long files, imports that are not at the top, functions that only raise, private reads

No count may be above its budget in size.json. ``--write`` keeps what fell; what rose is kept by ``--raise`` alone,
in a commit of its own, with the reason. ``--where private`` lists the places of a count of form.
"""

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).with_suffix(".json")
LONG = 300
"""Lines from which on a file is long."""
LEFT_OUT = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")}
STRING_BEGINS, STRING_ENDS = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
"""Of an f-string in parts, as Python reads it from 3.12 on."""

Sizes = dict[str, dict[str, int]]
"""Room -> what was counted -> how many."""


def code_of(text: str, tree: ast.Module) -> tuple[int, int]:
    """Lines and tokens of code."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        alone = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if alone or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    lines, tokens, inside = set(), 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in LEFT_OUT or token.start[0] in left_out:
            continue
        inside -= token.type == STRING_ENDS
        tokens += inside == 0 and token.type != STRING_ENDS
        inside += token.type == STRING_BEGINS
        lines |= set(range(token.start[0], token.end[0] + 1)) - left_out
    return len(lines), tokens


def is_own(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is of this package."""
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
    return getattr(node, "level", 0) > 0 or names[0].split(".")[0] == "bertflow"


def imports_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Imports that are not at the top of their file: which kind, and the line."""
    ifs = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    for_types = {id(node) for one in ifs for node in ast.walk(one)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) in for_types:
            yield "imports under TYPE_CHECKING", node.lineno
        elif isinstance(node, ast.Import | ast.ImportFrom) and node.col_offset:
            yield f"{'own' if is_own(node) else 'other'} imports not at the top", node.lineno
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            yield "calls of import_module", node.lineno


def called(node: ast.Call) -> str:
    """Last part of the name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def private_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Reads of what is private to another object or file: what it is called here, and the line."""
    for node in ast.walk(tree):
        names = [node.attr] if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else []
        if names and ast.unparse(node.value) in ("self", "cls", "super()"):
            continue
        if isinstance(node, ast.ImportFrom) and is_own(node):
            names = [name.name for name in node.names]
        public = ("_asdict", "_fields", "_replace")  # of named tuples
        if any(name[0] == "_" and name[:2] != "__" and name not in public for name in names):
            yield "reads of another's _private", node.lineno


def refusals_of(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, int]]:
    """Functions that return nothing and only raise, themselves or by calling such ones: file and line."""
    functions = {
        (path, node.lineno): node
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name[:2] != "__" and node.returns
        if ast.unparse(node.returns) in ("None", "NoReturn", "Never")
    }
    known: set[str] = set()
    for _ in range(9):  # as deep as they call each other
        found = {place: node for place, node in functions.items() if only_raises(node, known)}
        known = {node.name for node in found.values()}
    yield from found


def only_raises(function: ast.FunctionDef, known: set[str]) -> bool:
    """Whether a function changes nothing, returns nothing, and raises or calls a function that does only this."""
    raises = False
    for node in ast.walk(function):
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            if not (isinstance(node.value, ast.Call) and called(node.value) in known):
                return False
            raises = True
        if isinstance(node, ast.Return) and node.value:
            return False
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return False
        raises |= isinstance(node, ast.Raise)
    return raises


def measured(root: Path) -> tuple[Sizes, dict[str, list[str]]]:
    """The sizes of all rooms, and where the package has what the style of the house wants few of."""
    sizes: Sizes = {}
    trees: dict[str, ast.Module] = {}
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(path for top in ("bertflow", "tests", "benchmarks") for path in (root / top).rglob("*.py")):
        name, (room, *inside), text = (
            path.relative_to(root).as_posix(),
            path.relative_to(root).parts,
            path.read_text("utf-8"),
        )
        tree = ast.parse(text)
        if room == "bertflow":
            room += f"/{inside[0]}" if len(inside) > 1 else "/*.py"
            trees[name] = tree
            if text.count("\n") > LONG:
                places[f"files over {LONG} lines"].append(name)
            for unit, line in (*imports_of(tree), *private_of(tree)):
                places[unit].append(f"{name}:{line}")
        counts = sizes.setdefault(room, {"lines": 0, "tokens": 0})
        for unit, count in zip(counts, code_of(text, tree), strict=True):
            counts[unit] += count
    places["functions that only raise"] = [f"{name}:{line}" for name, line in refusals_of(trees)]
    others = [
        path for path in (root / "bertflow").rglob("*.*") if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    form = {unit: len(places[unit]) for unit in sorted(places)}
    return sizes | {"form": form | {"bytes of other files": sum(path.stat().st_size for path in others)}}, places


def risen(found: Sizes, budgets: Sizes) -> dict[str, str]:
    """Room -> what is above its budget there, in words; what has no budget has one of 0."""
    above = [
        (room, f"{count:,} {unit}, {count - budget:,} above the budget of {budget:,}")
        for room, counts in found.items()
        for unit, count in counts.items()
        if count > (budget := budgets.get(room, {}).get(unit, 0))
    ]
    return {room: "; ".join(words for other, words in above if other == room) for room, _ in above}


def lowered(found: Sizes, budgets: Sizes) -> Sizes:
    """The budgets, but where something fell, what was found."""
    return {
        room: {unit: min(found[room].get(unit, 0), budget) for unit, budget in counts.items()}
        for room, counts in budgets.items()
        if room in found
    }


def write(budgets: Sizes, raised: Mapping[str, str]) -> None:
    """Keep the budgets and why they were raised, a room in each line."""
    parts = []
    for name, rows in {"budgets": budgets, "raised": raised}.items():
        lines = ",\n".join(
            f"    {json.dumps(room)}: {json.dumps(row)}" for room, row in rows.items() if room in budgets
        )
        parts.append(f'  "{name}": {{\n{lines}\n  }}' if lines else f'  "{name}": {{}}')
    KEPT.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def main() -> int:
    """Count, and compare or keep; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what fell")
    parser.add_argument("--raise", dest="reason", help="keep what rose as well: what it buys")
    parser.add_argument("--where", metavar="WORD", help="list the places of what has this word in its name")
    options = parser.parse_args()
    found, places = measured(ROOT)
    if options.where:
        print("\n".join(place for unit, listed in places.items() if options.where in unit for place in listed))
        return 0
    kept = json.loads(KEPT.read_text("utf-8"))
    above = risen(found, kept["budgets"])
    if options.reason:
        write(found, kept["raised"] | dict.fromkeys(above, options.reason))
        print(f"size: raised for {', '.join(above) or 'nothing'}.")
        return 0
    if options.write:
        write(lowered(found, kept["budgets"]), kept["raised"])
    else:
        package = {unit: sum(row[unit] for room, row in found.items() if "/" in room) for unit in ("lines", "tokens")}
        for room, counts in {"bertflow": package, **found}.items():
            print(f"{room:22}", ", ".join(f"{count:,} {unit}" for unit, count in counts.items()))
    for room, words in above.items():
        print(f"size: {room}: {words}.")
    if "form" in above:
        print('size: --where WORD lists the places, as --where "files over".')
    print(
        'size: shrink it, or say what it buys with --raise "REASON".' if above else "size: nothing is above its budget."
    )
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
