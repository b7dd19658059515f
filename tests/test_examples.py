"""Every public name has an example in the reference, which runs and prints what it says."""

import doctest
import re
from pathlib import Path

import pytest

import bertflow

TEXT = (Path(__file__).parents[1] / "docs" / "hooks" / "examples.md").read_text("utf-8")
EXAMPLES = dict(re.findall(r"^## (\w+)\n\n```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
LONG = {
    "CollectionIndex", "compare", "demo", "diagnose", "evaluate", "export_encoder", "finetune", "fix",
    "inspect_geometry", "load_sentence_transformer", "paper_tables", "reindex", "serve_encoder", "train",
    "verify_paper", "write_search_example",
}  # fmt: skip
SLOW = LONG | {name for name, code in EXAMPLES.items() if "build_index(" in code and name != "build_index"}
"""Those that take long, and those that do the same as others first."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder of an example; with the data and the plain BERT, where they are there."""
    shared = Path(__file__).parents[2] / "shared" / "data"
    for name, path in (("data", shared), ("mlm-4x256", shared / "encoders" / "mlm-4x256")):
        if path.is_dir():
            (tmp_path / name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Little text spans few directions.
@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in EXAMPLES])
def test_an_example_runs(name, place):
    for needed in ("data/sts", "mlm-4x256"):
        if f'"{needed}"' in EXAMPLES[name] and not (place / needed).is_dir():
            pytest.skip(f"needs {needed}, which cannot be shipped")
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], {}, name, "examples.md", 0)
    said = []
    failed = doctest.DocTestRunner().run(test, out=said.append).failed
    assert (len(test.examples) > 0, failed) == (True, 0), "".join(said)


def test_every_public_name_has_an_example():
    assert EXAMPLES.keys() == set(bertflow.__all__) - {"__version__"}
