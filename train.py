"""Fit a flow to your encoder and text: python train.py --config configs/default.yaml."""

import sys

from bertflow.cli import main

if __name__ == "__main__":
    sys.exit(main(script="train"))
