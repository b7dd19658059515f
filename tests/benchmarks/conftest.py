"""The benchmarks are not a package: their files import one another by name."""

import importlib
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def read_json(path):
    return json.loads(path.read_text("utf-8"))


def imported(name, scope="function"):
    """A fixture that is a file of the benchmarks."""
    return pytest.fixture(scope=scope)(lambda benchmark: benchmark(name))


@pytest.fixture(scope="package")
def benchmark():
    """A function that imports a file of the benchmarks by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module
