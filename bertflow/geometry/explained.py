"""What the numbers of a report's sections are, and how to read them: two plain sentences each, by section.

Those of whole clouds stand beside their functions, in ``bertflow.geometry.measures.MEASURES``.
"""

from collections.abc import Mapping

HELD_OUT = "held out"

PARAPHRASES: Mapping[str, str] = {
    "alignment": "Mean squared distance of two paraphrases, scaled to length one. The lower, the closer they lie.",
    "uniformity": "Log of the mean of exp(-2 distance^2) over all pairs. The lower, the more evenly sentences are "
    "spread.",
    "separation": "Probability that a paraphrase has a higher cosine than a random pair. 0.5 is chance, 1 is perfect.",
}
SCORES: Mapping[str, str] = {
    "hit@1": "Share of queries whose own text is nearer than every other text. 0 is none, 100 is all.",
    "Spearman": "Correlation of the ranks of the cosines with those of the human scores. 0 is chance, 100 is the same "
    "order.",
    "interval": "The range that holds the value for 95 of 100 other samples of such pairs. Two systems can differ "
    "although their bars overlap, since they share their pairs.",
}
NEIGHBORHOOD: Mapping[str, str] = {
    "length": "Mean Euclidean length of the embeddings. Where it is the same in all rows, word frequency does not "
    "decide how far from the origin they lie.",
    "distance": "Mean Euclidean distance to the nearest embeddings. The larger, the emptier the space around them.",
    "product": "Mean dot product with the embeddings where it is largest. It grows with the lengths, which a cosine "
    "does not.",
}
LAYERS: Mapping[str, str] = {
    "different words (baseline)": "Mean cosine of two different words. It is what any two vectors of the layer have in "
    "common.",
    "one word in different sentences": "Mean cosine of a word with itself in another sentence. The lower, the more its "
    "sentence decides.",
    "a word and its sentence": "Mean cosine of a word with the mean of its sentence. The higher, the more alike the "
    "words of a sentence are.",
    "MEV": "Share of the variance of a word's vectors that one static vector explains at most. The lower, the more "
    "contextual the word is.",
    "MEV, baseline": "The same share for vectors of different words. What MEV has above it belongs to the word.",
}
LATENT: Mapping[str, str] = {
    "means": "Root mean square of the means of the coordinates. A Gaussian has 0.",
    "covariances": "Root mean square covariance of two coordinates. At 0 none goes with another.",
    "by chance": "What means and covariances are for so many rows of a Gaussian. Less cannot be told from 0.",
    "variances": "Root mean square of the variances less 1. At 0 all coordinates have the right width.",
    "skewness": "Root mean square skewness of the coordinates. At 0 they are symmetric, as a Gaussian is.",
    "kurtosis": "Root mean square excess kurtosis of the coordinates. Above 0 some values lie far out.",
    "lengths": "Largest gap between the distribution of the squared lengths and chi-square (Kolmogorov-Smirnov). At "
    "0 they agree.",
}
TRAINING: Mapping[str, str] = {
    "bits per dimension": "How many bits the flow needs to say where an embedding lies, over the dimension. The "
    "lower, the better it describes the cloud.",
    HELD_OUT: "Rows that were not trained on. Where their line rises while that of training falls, the flow learns its "
    "rows by heart.",
}
