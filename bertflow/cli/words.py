"""``bertflow words``: static against contextual vectors of words."""

from bertflow.api.looking import compare_words
from bertflow.cli.command import Command

main = Command(
    "words",
    compare_words,
    positionals=("words",),
    aliases={"sentences": ("--in",)},
    metavars={"words": "WORD", "sentences": "SENTENCE", "study": "NAME|FILE", "pooling": "ROW"},
    json=True,
    examples="""\
  bertflow words --study king-queen --output words
  bertflow words bank#1 bank#2 --in "The bank by the river is no bank for money."
  bertflow words king queen --in "The king met the queen." --in "The king likes the band Queen." --pooling "mean(1,2)"

A FILE of a study is JSON:
  {"mentions": [{"context": "court", "word": "king", "sentence": "..."}, ...]   also label, occurrence, segment
   "pairs": [["king", "queen"]],                     followed from layer to layer (default: all)
   "closer": [["king", "queen", "apple"]],           is king nearer to queen than to apple?
   "offsets": [["king", "man", "queen", "woman"]]}   is king - man the same as queen - woman?""",
).main
