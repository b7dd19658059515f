"""The notebooks of examples/: what they keep is whole and of no machine, and running them again gives the same."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LARGEST = 400 * 1024
"""Bytes of a notebook, its pictures included."""
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*\.?")
RULE = re.compile(r"[-:|]+")
VERSIONS = re.compile(r"docstrings of Python.*")
"""What a notebook prints of the text that it was fitted on, which differs between versions of the packages."""
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return pytest.importorskip("nbformat").read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def kinds(cell):
    """What kinds of output a cell has, in order."""
    return [(one.output_type, *sorted(one.get("data", [one.get("name")]))) for one in cell.outputs]


def texts(cell):
    """What a cell printed, without pictures."""
    shown = (one.get("data", {"text/plain": one.get("text", "")}) for one in cell.outputs)
    return "\n".join(one.get("text/markdown", one.get("text/plain", "")) for one in shown if "image/png" not in one)


def load(place):
    spec = importlib.util.spec_from_file_location(Path(place).stem, ROOT / place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@every_notebook
def test_a_notebook_is_whole(path):
    notebook, cells = read(path), code_cells(path)
    pytest.importorskip("nbformat").validate(notebook)
    assert notebook.metadata == load("examples/make.py").METADATA
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert {one.output_type for cell in cells for one in cell.outputs} <= {"stream", "display_data", "execute_result"}
    assert {one.get("name") for cell in cells for one in cell.outputs} <= {None, "stdout"}, "nothing on stderr"
    assert any("image/png" in one.get("data", ()) for cell in cells for one in cell.outputs)
    assert {"execution", "widgets"} & {key for cell in notebook.cells for key in cell.metadata} == set()
    assert path.stat().st_size <= LARGEST


@every_notebook
def test_a_notebook_tells_nothing_of_a_machine(path):
    said = "\n".join(f"{cell.source}\n{texts(cell) if cell.cell_type == 'code' else ''}" for cell in read(path).cells)
    assert re.findall(r"(?<![\w.])/(?:home|tmp|work|root|Users|private|var|usr|opt)/\S*|[A-Z]:\\\\\S*", said) == []


@every_notebook
def test_what_a_notebook_imports_is_there(path):
    imports = re.findall(
        r"^(?:from bertflow|import bertflow).*", "\n".join(cell.source for cell in code_cells(path)), re.M
    )
    assert imports
    exec("\n".join(imports), {})


@every_notebook
def test_a_notebook_is_on_the_site(path):
    assert f": examples/{path.stem}.md\n" in (ROOT / "mkdocs.yml").read_text("utf-8")
    assert f"(../examples/{path.name})" in (ROOT / "docs" / "get-started.md").read_text("utf-8")


def test_a_page_of_the_site_shows_what_a_notebook_keeps():
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]},
        {"output_type": "execute_result", "data": {"image/png": "QUJD\nRA==\n", "text/plain": "<Figure>"}},
        {"output_type": "display_data", "data": {"text/markdown": "| a |", "text/plain": "<Markdown>"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]},
        {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": outputs},
    ]
    page = load("docs/hooks/site.py").notebook_page({"cells": cells})
    assert page == (
        "# Title\n\nText.\n\n```python\nx = 1\nx\n```\n\n```text\none\ntwo\n```\n\n"
        "![Title](data:image/png;base64,QUJDRA==)\n\n| a |\n"
    )


def words(text):
    return NUMBER.sub("#", RULE.sub("", text)).split()


def same(kept, found):
    """The same words, and nearly the same numbers: the last digits depend on the processor."""
    kept, found = (VERSIONS.sub("", text) for text in (kept, found))
    assert words(found) == words(kept)
    told, got = ([float(one.replace(",", "").rstrip(".")) for one in NUMBER.findall(text)] for text in (kept, found))
    assert got == pytest.approx(told, rel=0.1, abs=0.1)


def test_another_output_is_found():
    same(
        "docstrings of Python 3.11.7\na 0.50 | 12,000.\n|:---|",
        "docstrings of Python 3.11.7\na 0.52 | 12,001.\n|:-----|",
    )
    for other in ("b 0.50", "a 0.80"):
        with pytest.raises(AssertionError):
            same("a 0.50", other)


@pytest.mark.slow
@pytest.mark.usefixtures("minilm")
@every_notebook
def test_a_notebook_runs_and_gives_what_it_keeps(path, shared_data, tmp_path):
    inputs = {
        "BERTFLOW_EXAMPLE_MODEL": str(shared_data / "encoders" / "mlm-4x256"),
        "BERTFLOW_STS_DIR": str(shared_data / "sts"),
    }
    make = [sys.executable, str(ROOT / "examples" / "make.py"), path.stem, "--output", str(tmp_path)]
    environment = {**os.environ, **inputs, "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(make, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-5000:]
    kept, found = code_cells(path), code_cells(tmp_path / path.name)
    assert list(map(kinds, found)) == list(map(kinds, kept))
    fitted_on = [VERSIONS.findall("\n".join(map(texts, cells))) for cells in (kept, found)]
    if fitted_on[0] == fitted_on[1]:
        for ours, theirs in zip(kept, found, strict=True):
            same(texts(ours), texts(theirs))
