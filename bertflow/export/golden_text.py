"""The 32 sentences of every ``golden.json``: plain ones, awkward ones, and six that grow until they must be cut.

They never change: a golden file of today can be compared with one of next year.
"""

PLAIN = (
    "A man is playing a guitar.",
    "The cat sleeps on the warm roof.",
    "Prices rose by 3.5 percent in March.",
    "How do I reset my password?",
    "The committee will vote on the proposal on Tuesday.",
    "She bought two tickets for the evening show.",
    "No.",
    "Water boils at a lower temperature in the mountains.",
    "The package arrived late, and the box was damaged.",
    "Two children are running along the beach with a dog.",
    "Please send the signed form back by e-mail.",
    "The old bridge was closed to traffic for repairs.",
    "He has not answered any of my questions.",
    "Rain is expected in the north, sun in the south.",
    "The function returns an empty list when nothing matches.",
    "Everyone at the table laughed at the story.",
    "Der Zug nach Berlin hat heute Verspätung.",
    "Où se trouve la gare la plus proche ?",
    "今日は天気がいいですね。",
    "WARNING: DO NOT OPEN THIS DOOR!!!",
    "x = (a + b) * c[0]  # 42",
    "Contact: jane.doe@example.com, +1 (555) 010-0199",
    "the the the the the",
    "   Spaces   before, between   and behind.   ",
    "naïve café “quoted” … ½",
    "It was not bad at all; in fact, it was rather good.",
)
LONG = (2, 4, 8, 12, 18, 26)
"""How many of the plain sentences are joined: some 25, 50, 100, 150, 220 and 330 tokens of BERT."""
GOLDEN_SENTENCES = (*PLAIN, *(" ".join(PLAIN[:n]) for n in LONG))
