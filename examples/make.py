"""Run the notebooks from top to bottom, and keep what they show: ``python examples/make.py`` (make notebooks).

Each one runs in a folder of its own, which is removed. Nothing of the time or of the machine is kept. The environment
variables that a notebook reads are named in its first cell.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from bertflow.files import write_text

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""All that is kept of what a notebook says of itself."""
QUIET = {"TQDM_DISABLE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
"""Progress bars are for those who wait; without ipywidgets, tqdm warns when it is imported."""
TIMEOUT = 600
"""Seconds for a cell."""


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new kernel.

    Raises:
        CellExecutionError: If a cell does, with its traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            resources={"metadata": {"path": folder}},
        )
        client.execute(env={**os.environ, **QUIET, "TMPDIR": folder, "IPYTHONDIR": f"{folder}/.ipython"})
    notebook.metadata = METADATA
    return notebook


def main() -> None:
    """Run the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks, without their ending; all by default")
    parser.add_argument("--output", type=Path, default=HERE, help="folder to write them to; in place by default")
    options = parser.parse_args()
    for name in options.names or sorted(path.stem for path in HERE.glob("*.ipynb")):
        print(f"{name} ...", flush=True)
        notebook = executed(HERE / f"{name}.ipynb")
        write_text(options.output / f"{name}.ipynb", f"{nbformat.writes(notebook)}\n")


if __name__ == "__main__":
    main()
