"""Every example of the reference runs, and prints what it says; the names that have none yet are listed here."""

import doctest
import re
from pathlib import Path

import pytest

import bertflow

TEXT = (Path(__file__).parents[1] / "docs" / "hooks" / "examples.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
WITHOUT = {
    "BertFlow",
    "CollectionIndex",
    "compare_words",
    "demo",
    "diagnose",
    "evaluate",
    "finetune",
    "fix",
    "inspect_geometry",
    "load_sentence_transformer",
    "paper_tables",
    "reindex",
    "serve_encoder",
    "sweep",
    "train",
    "verify_paper",
    "write_search_example",
}
"""Public names without an example."""
SLOW = {name for name, code in EXAMPLES.items() if "build_index(" in code and name != "build_index"} | {
    "export_encoder"
}
"""Those that do the same as others first."""


@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXAMPLES])
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {}, name, "examples.md", 0)
    said = []
    failed = doctest.DocTestRunner().run(test, out=said.append).failed
    assert (len(test.examples) > 0, failed) == (True, 0), "".join(said)


def test_the_names_without_an_example_are_these():
    assert set(bertflow.__all__) - EXAMPLES.keys() - {"__version__"} == WITHOUT
    assert EXAMPLES.keys() <= set(bertflow.__all__)
