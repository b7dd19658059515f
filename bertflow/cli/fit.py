"""``bertflow fit``: fit a calibrator to rows on disk."""

from bertflow.api.vectors import fit
from bertflow.cli.command import Command

main = Command(
    "fit",
    fit,
    metavars={"calibrator": "C", "output": "FOLDER"},
    skips=True,
    examples="""\
  bertflow fit --store stores/mine --calibrator "whitening(128)" --output calibrators/mine
  bertflow fit --vectors index.parquet --column embedding --calibrator "abtt(3)" --output calibrators/index
  bertflow fit --store stores/mine --calibrator flow --output calibrators/flow""",
).main
