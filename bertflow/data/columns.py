"""What the columns of tables may be called: one table of names for every reader.

The columns of a table tell what it holds. Case does not matter; of the rows of a kind, the first that a table has all
columns of is taken.
"""

from collections.abc import Mapping

PAIR_KINDS = ("graded", "binary", "classes", "retrieval", "texts")
"""The kinds that are pairs of texts; the first that a table has the columns of is taken."""
TEXTS = (
    *(("query", "text"), ("question", "answer"), ("text", "paraphrase"), ("anchor", "positive")),
    *(("sentence1", "sentence2"), ("sentence_A", "sentence_B"), ("premise", "hypothesis")),
    *(("a", "b"), ("text1", "text2")),
)
COLUMNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    # Two texts and a target.
    "graded": (("sentence1", "sentence2", "score"), ("sentence_A", "sentence_B", "relatedness_score")),
    "binary": (("a", "b", "label"), ("sentence1", "sentence2", "label"), ("question", "sentence", "label")),
    "classes": (
        ("sentence1", "sentence2", "gold_label"),  # SNLI, MNLI, GLUE's copies
        ("premise", "hypothesis", "label"),
        ("premise", "hypothesis", "gold_label"),
        ("sentence1", "sentence2", "label"),
        ("sentence_A", "sentence_B", "entailment_judgment"),  # SICK
    ),
    # Two texts.
    "retrieval": (("query", "text"), ("question", "answer")),
    "documents": (*(("question", "answer"), ("query", "text")), *(("title", "text"), ("title", "body")), TEXTS[3]),
    "texts": TEXTS,
    # One text, perhaps with something beside it.
    "sentences": (("query", "text"), ("text",), ("sentence",), *TEXTS[1:]),
    "labelled": (("text", "label"), ("sentence", "label"), ("word", "label")),
    "answers": (("id", "text", "questions"), ("id", "text")),
    "answered": (("question", "id"),),
}
"""A row is what a table holds, and what its columns may be called: the texts first, then what belongs to them."""
