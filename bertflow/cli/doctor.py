"""``bertflow doctor``: why do a server's embeddings differ from yours?"""

from bertflow.api.exporting import diagnose
from bertflow.cli.command import Command

main = Command(
    "doctor",
    diagnose,
    metavars={"golden": "FOLDER|FILE", "model": "FOLDER", "key": "VARIABLE"},
    json=True,
    examples="""\
  bertflow doctor --golden exported --url http://localhost:8080
  bertflow doctor --golden golden.json --url https://embeddings.example.com/v1 --model_name mine --normalized
  bertflow doctor --golden exported --model exported""",
).main
