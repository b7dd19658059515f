"""The README is a test: every block runs, in order, in one folder, unless it is marked ``no-run``.

A block that names ``data/sts`` needs the STS data, which is not ours to ship.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```(python|bash)\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    for name in ("train.py", "evaluate.py", "configs"):
        (folder / name).symlink_to(ROOT / name)
    data = ROOT.parent / "shared" / "data"
    if data.is_dir():
        (folder / "data").symlink_to(data)
    return folder


@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize(("language", "code"), BLOCKS, ids=[code.strip().splitlines()[-1][:60] for _, code in BLOCKS])
def test_readme_runs(language, code, folder):
    if "data/sts" in code and not (folder / "data").exists():
        pytest.skip("needs the STS data, as data/sts")
    shell = [sys.executable, "-c"] if language == "python" else ["bash", "-euc"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = subprocess.run(
        [*shell, code], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
