"""Score encoders: python evaluate.py MODEL_OR_FOLDER ... --tasks sts7 --data_dir DIR."""

import sys

from bertflow.cli import run
from bertflow.cli.evaluate import main

if __name__ == "__main__":
    sys.exit(run(main))
