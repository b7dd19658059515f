"""The rules of the house: one of each idea, one door to each library, small files, imports that wait until used."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import bertflow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bertflow"
FILES = sorted(PACKAGE.rglob("*.py"))
OUTSIDE_CLI = [path for path in FILES if PACKAGE / "cli" not in path.parents]

OWN_VALUES = {
    "FORMAT": "each is the version of another file format",
    "ROWS": "each is a number of rows that fits the memory of another computation",
    "BLOCK": "as ROWS",
    "CHUNK": "as ROWS",
    "RAW": "a word of tables; modules that load no PyTorch cannot import it from calibration/",
    "STATIC": "how poolings of word embeddings begin, and what the words report calls them",
}
"""Constants that have one name and one value in several modules, and are not one idea: why."""

DOORS = {
    "argparse": ("cli",),
    "filelock": ("jobs.py",),
    "jsonargparse": ("cli",),
    "langchain_core": ("integrations/langchain.py",),
    "matplotlib": ("plots.py",),
    "mteb": ("integrations/mteb.py",),
    "nflows": ("flow",),
    "onnx": ("export",),
    "onnxruntime": ("export",),
    "openpyxl": ("data/cells.py",),
    "prometheus_client": ("serve/metrics.py",),
    "pgvector": ("databases/pgvector.py", "databases/postgres.py"),
    "psycopg": ("databases/pgvector.py", "databases/postgres.py"),
    "pydantic": ("records.py",),
    "pytorch_lightning": ("training", "finetuning", "runs", "cli/command.py"),
    "qdrant_client": ("databases/qdrant.py",),
    "ray": ("integrations/ray.py",),
    "rich": ("cli",),
    "sentence_transformers": ("export",),
    "starlette": ("serve/server.py",),
    "usearch": ("integrations/usearch.py",),
    "uvicorn": ("serve",),
}
"""Library -> the only files and folders that import it."""

HEAVY = ("torch", "transformers", "pytorch_lightning", "sklearn", "matplotlib", "datasets")
FIT = "import bertflow, numpy; bertflow.Whitening().fit(numpy.random.default_rng(0).normal(size=(50, 4)))"
LOADED = {
    "import bertflow": (),
    "import bertflow.training": (),
    "import bertflow.runs": (),
    "import bertflow; bertflow.train, bertflow.finetune, bertflow.demo": (),
    "import bertflow.calibration.flow, bertflow.runs.vectors": ("torch", "transformers", "sklearn"),
    "import bertflow.runs.sources, bertflow.calibration.spelling": ("torch", "sklearn"),  # fit and transform
    "import bertflow; bertflow.TransformerEncoder": ("torch", "transformers"),
    FIT: ("torch", "sklearn"),
    "import bertflow; bertflow.load_calibrator": ("torch", "sklearn"),
    "import bertflow; bertflow.CalibratedEncoder": ("torch", "sklearn", "transformers"),
    "import bertflow; bertflow.evaluate_sts": ("torch", "sklearn", "transformers"),
}
"""Code -> the heavy libraries that it may load."""


@cache
def parsed(path):
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes(path):
    return [*ast.walk(parsed(path))]


def places(found):
    """What is found in several files: {name: files}."""
    return {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}


def test_no_public_class_or_function_is_defined_twice():
    found = defaultdict(list)
    for path in OUTSIDE_CLI:
        for one in parsed(path).body:
            if isinstance(one, ast.ClassDef | ast.FunctionDef) and not one.name.startswith("_"):
                found[one.name].append(str(path.relative_to(PACKAGE)))
    assert places(found) == {}


def constants(path):
    for one in parsed(path).body:
        target = (
            one.target if isinstance(one, ast.AnnAssign) else one.targets[0] if isinstance(one, ast.Assign) else None
        )
        if isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_") and one.value:
            yield target.id, ast.dump(one.value)


def test_no_constant_is_written_down_twice():
    found = defaultdict(list)
    for path in OUTSIDE_CLI:
        for name, value in constants(path):
            found[name, value].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for (name, _), paths in places(found).items() if name not in OWN_VALUES} == {}


NO_SUBJECT = re.compile(r"(Of|As|That|Those|From|The same)\b")
NO_NOUN = re.compile(r"(Begins|Below|Between|By|Fewer|For|In|Into|Is|Its|Likewise|Stands|Takes|Where|Whether|With)\b")


def docstrings(path):
    """Texts that stand alone, each with the code before it."""
    bodies = [getattr(one, "body", None) for one in nodes(path)]
    for body in bodies:
        for before, one in pairwise([None, *body]) if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.value.value.strip(), ast.unparse(before) if before else ""


def test_docstrings_begin_with_their_subject_and_those_of_constants_with_a_noun():
    said = [(text, before) for path in FILES for text, before in docstrings(path)]
    assert [text for text, _ in said if NO_SUBJECT.match(text)] == []
    assert [text for text, code in said if re.match(r"_?[A-Z]{2}", code) and NO_NOUN.match(text)] == []


def test_no_public_name_is_the_name_of_a_module():
    modules = {path.parent.name if path.stem == "__init__" else path.stem for path in OUTSIDE_CLI}
    assert modules & set(bertflow.__all__) == set()


def imports(path):
    """Every module that a file imports, wherever in the file it does so."""
    for one in nodes(path):
        if isinstance(one, ast.Import):
            yield from (name.name for name in one.names)
        elif isinstance(one, ast.ImportFrom):
            yield one.module


def test_errors_that_were_not_foreseen_are_caught_by_the_command_line_alone():
    wide = ("Exception", "BaseException")
    found = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if PACKAGE in path.parents
        for one in nodes(path)
        if isinstance(one, ast.ExceptHandler) and (one.type is None or getattr(one.type, "id", "") in wide)
    ]
    assert found == ["cli/program.py"]


@pytest.mark.parametrize("library", DOORS)
def test_a_library_has_one_door(library):
    inside = [PACKAGE / door for door in DOORS[library]]
    assert all(door.exists() for door in inside)
    others = [path for path in FILES if not any(door == path or door in path.parents for door in inside)]
    assert [path.name for path in others for name in imports(path) if name.split(".")[0] == library] == []


def test_benchmarks_import_the_package_and_not_its_commands():
    # counts.py counts what the help of each command loads.
    paths = sorted(set((ROOT / "benchmarks").glob("*.py")) - {ROOT / "benchmarks" / "counts.py"})
    assert [path.name for path in paths for name in imports(path) if name.startswith("bertflow.cli")] == []


AFRESH = """
for name, module in [*sys.modules.items()]:
    if module is None or name.split(".")[0] == "bertflow":
        del sys.modules[name]
"""
"""What lets another row import the package anew, and what was out of reach for the row before."""


def printed(*rows):
    """What rows of code print in a new process, a line each: each row imports the package anew."""
    script = AFRESH.join(("import sys", *rows))
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("with_sklearn", [True, False])
def test_imports_wait_until_they_are_used(with_sklearn):
    rows = {code: may for code, may in LOADED.items() if (may == ("torch", "transformers")) != with_sklearn}
    codes = sorted(rows, key=lambda code: len(rows[code]))  # what a row loads stays for those behind it
    found = printed(*(f"{code}\nprint([name for name in {HEAVY} if name in sys.modules])" for code in codes))
    for code, names in zip(codes, found, strict=True):
        assert set(ast.literal_eval(names)) <= set(rows[code]), code


EXTRAS = {
    "langchain_core": ("integrations.langchain", "langchain-core", "langchain"),
    "lancedb": ("databases.lancedb", "lancedb", "lancedb"),
    "matplotlib.figure": ("plots", "matplotlib", "plots"),
    "mteb": ("integrations.mteb", "mteb", "mteb"),
    "prometheus_client": ("serve.metrics", "prometheus_client", "serve"),
    "psycopg": ("databases.pgvector", "psycopg, pgvector", "pgvector"),
    "qdrant_client": ("databases.qdrant", "qdrant-client", "qdrant"),
    "starlette": ("serve.server", "starlette", "serve"),
    "usearch.index": ("integrations.usearch", "usearch", "search"),
    "uvicorn": ("serve.server", "uvicorn", "serve"),
}
"""What is imported -> the module that does so, the package, and the extra that brings it."""


def test_without_an_extra_its_pip_line_is_given():
    row = "sys.modules[{!r}] = None\ntry: import bertflow.{}\nexcept ImportError as no: print(no)"
    assert printed(*(row.format(imported, module) for imported, (module, _, _) in EXTRAS.items())) == [
        f"This needs the package {package}. Install it with: pip install 'bertflow[{extra}]'"
        for _, package, extra in EXTRAS.values()
    ]


def rows(heading):
    """The rows of the tables under a heading of CONTRIBUTING.md, as lists of cells."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]


def test_the_map_of_files_is_the_order_of_imports():
    with (ROOT / "pyproject.toml").open("rb") as file:
        contract, _ = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layer = {
        name.removeprefix("bertflow."): at for at, one in enumerate(contract["layers"]) for name in one.split(" | ")
    }
    assert set(layer) == {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__", "__main__"}
    mapped = [re.findall(r"`(?:bertflow/)?(\w+)", where) for where, _ in rows("The map of files")]
    mapped = [names for names in mapped if set(names) <= set(layer)]
    assert {name for names in mapped for name in names} == set(layer)
    assert [layer[name] for names in mapped for name in names] == sorted(layer.values())
