"""Score encoders: python evaluate.py MODEL_OR_FOLDER ... --tasks sts7 --data_dir DIR."""

import sys

from bertflow.cli import main

if __name__ == "__main__":
    sys.exit(main(script="evaluate"))
