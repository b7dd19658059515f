"""``bertflow serve``: answer requests for embeddings over HTTP."""

from bertflow.cli.command import Command
from bertflow.serve import serve_encoder

main = Command(
    "serve",
    serve_encoder,
    positionals=("model",),
    metavars={"max_body": "BYTES", "timeout": "SECONDS"},
    examples="""\
  bertflow serve runs/mine
  bertflow serve runs/mine --name my-encoder --port 9000 --normalize
  curl localhost:8000/v1/embeddings --json '{"input": ["A dog sings.", "A cat sleeps."]}'""",
).main
