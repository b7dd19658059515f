"""The help of ``serve`` and ``search``; serving itself is tested in ``tests/serve``."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", ["serve", "search"])
def test_help_needs_neither_starlette_nor_torch(command):
    script = (
        "import sys; from bertflow.cli import main\n"
        f"try: main(['{command}', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'starlette', 'uvicorn', 'torch', 'transformers'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert finished.stdout.splitlines()[-1] == "[]"
