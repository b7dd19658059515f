"""``python -m bertflow``."""

import sys

from bertflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
