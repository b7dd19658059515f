"""``bertflow reindex``: calibrate a collection of a database into a new one."""

from bertflow.api.searching import reindex
from bertflow.cli.command import Command

main = Command(
    "reindex",
    reindex,
    positionals=["source", "target"],
    metavars={"calibrator": "FOLDER|SPELLING", "output": "DIR"},
    skips=True,
    json=True,
    examples="""\
  bertflow reindex lancedb:db/docs lancedb:db/docs2 --calibrator whitening --model MODEL
  bertflow reindex lancedb:db/docs lancedb:db/docs2 --calibrator runs/mine/calibrator
  bertflow reindex qdrant:http://localhost:6333/docs qdrant:http://localhost:6333/docs2 --calibrator whitening
  bertflow reindex "pgvector:postgresql://ann@host/db/docs?vector=embedding" \\
                   "pgvector:postgresql://ann@host/db/docs2" --calibrator whitening""",
).main
