"""Every benchmark can be imported, and every name of the package in the README and the guides is there."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SPANS = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
NAME = re.compile(r"(?<![\w./-])bertflow(?:\.[A-Za-z_]\w*)+")
FROM = re.compile(r"^from (bertflow[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
FILES = re.compile(r"\.(index|json|log|md|npy|py|sif|txt|yaml|yml)$")
"""What is the name of a file, as bertflow.json."""


def test_every_benchmark_can_be_imported():
    # In a process of its own: they import one another by name, and set what this one should not have set.
    script = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"
    command = [sys.executable, "-c", script, *BENCHMARKS]
    finished = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def names_in(text):
    """Names of the package in code, with what is imported from a module as a name of it."""
    code = "\n".join(SPANS.findall(text))
    found = {name for name in NAME.findall(code) if not FILES.search(name)}
    for module, listed, line in FROM.findall(code):
        imported = (listed or line).split("#")[0].split(",")
        found |= {f"{module}.{each.split(' as ')[0].strip()}" for each in imported if each.strip()}
    return found


def resolve(name):
    """The module, or what stands in one."""
    package, *parts = name.split(".")
    found = importlib.import_module(package)
    for part in parts:
        # A module that was not imported yet is not an attribute of its package.
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(f"{found.__name__}.{part}")
    return found


NAMES = {name: page.name for page in PAGES for name in names_in(page.read_text("utf-8"))}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_in_the_guides_is_there(name):
    assert resolve(name) is not None, f"{name}, in {NAMES[name]}"


def test_names_are_found_in_code_alone():
    text = "bertflow.away `bertflow.a.B(x)` bertflow.json `bertflow.json`\n```\nfrom bertflow.c import d, e as f\n```"
    assert names_in(text) == {"bertflow.a.B", "bertflow.c", "bertflow.c.d", "bertflow.c.e"}
