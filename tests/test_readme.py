"""The README and every page of docs/ is a test: its blocks run, in order, in one folder, unless marked ``no-run``.

A block that names ``data/sts`` needs the STS data, which is not ours to ship.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.stem, language, code)
    for page in PAGES
    for language, code in re.findall(r"^```(python|bash)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each page."""
    folders = {page.stem: tmp_path_factory.mktemp(page.stem) for page in PAGES}
    data = ROOT.parent / "shared" / "data"
    for folder in folders.values():
        for name in ("train.py", "evaluate.py", "configs", "benchmarks"):
            (folder / name).symlink_to(ROOT / name)
        if data.is_dir():
            (folder / "data").symlink_to(data)
    return folders


@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize(
    ("page", "language", "code"),
    [pytest.param(*block, marks=[] if block[0] == "README" else [pytest.mark.slow]) for block in BLOCKS],
    ids=[f"{page}: {code.strip().splitlines()[-1][:60]}" for page, _, code in BLOCKS],
)
def test_what_is_written_runs(page, language, code, folders):
    folder = folders[page]
    if "data/sts" in code and not (folder / "data").exists():
        pytest.skip("needs the STS data, as data/sts")
    shell = [sys.executable, "-c"] if language == "python" else ["bash", "-euc"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = subprocess.run(
        [*shell, code], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
