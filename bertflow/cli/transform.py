"""``bertflow transform``: calibrate rows on disk."""

from bertflow.api.vectors import transform
from bertflow.cli.command import Command

main = Command(
    "transform",
    transform,
    metavars={"calibrator": "FOLDER", "output": "OUT"},
    skips=True,
    examples="""\
  bertflow transform --calibrator calibrators/mine --store stores/mine --output stores/calibrated
  bertflow transform --calibrator calibrators/index --vectors index.parquet --output calibrated.parquet
  bertflow transform --calibrator runs/mine/calibrator --vectors x.npy --output z.npy""",
).main
