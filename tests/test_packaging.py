"""The wheel and the sdist: they build, they hold what they should and nothing else, and the installed wheel works."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    finished = subprocess.run(build, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(dist):
    names = zipfile.ZipFile(next(dist.glob("*.whl"))).namelist()
    assert {"bertflow/py.typed", "bertflow/geometry/page.html", "bertflow/serve/page.html"} < set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"bertflow"}
    assert not [name for name in names if name.endswith((".txt.gz", ".tsv.gz", ".csv", ".npz"))]


def test_the_sdist_holds_what_a_packager_needs(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "train.py", "evaluate.py", "tests/test_packaging.py"} <= names
    assert {"examples/make.py", "examples/fix_your_encoder.ipynb"} <= names


def test_the_installed_wheel_works(dist, tmp_path):
    wheel = next(dist.glob("*.whl"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "site"),
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    script = (
        "import bertflow, numpy; print(bertflow.__file__); "
        "print(bertflow.Whitening().fit_transform(numpy.random.default_rng(0).normal(size=(50, 4))).shape)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    path, shape = finished.stdout.splitlines()
    assert Path(path).is_relative_to(tmp_path)
    assert shape == "(50, 4)"


def test_the_workflow_runs_the_versions_of_python_that_the_package_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))
    python = "Programming Language :: Python :: "
    named = [one.removeprefix(python) for one in project["classifiers"] if one.startswith(python)]
    assert workflow["jobs"]["linux"]["strategy"]["matrix"]["python"] == named
