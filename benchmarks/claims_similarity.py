"""The claims about how well sentences are compared and found: poolings, calibrators, text to fit on."""

from collections.abc import Mapping

from claims_rules import Claim

LI = "Li et al. 2020 (BERT-flow)"
SU = "Su et al. 2021 (BERT-whitening)"
TUTORIAL = "tutorials"
RETRIEVAL = "bertflow.evaluation.ungraded.right_ranks"
POINTS = "points of Spearman x 100, "

SIMILARITY: Mapping[str, Claim] = {
    "cls": Claim(
        "[CLS] is worse than the mean of the tokens.",
        "Reimers & Gurevych 2019 (SBERT), table 1",
        "claims_scores:mean_against_cls",
        POINTS + "mean minus [CLS] of the same layer",
    ),
    "second-to-last": Claim(
        "The second-to-last layer is better than the last.",
        f"{TUTORIAL} (bert-as-service, its default)",
        "claims_scores:second_to_last",
        POINTS + "second-to-last minus last",
    ),
    "first-last": Claim(
        "The average of the first and last layer is better than the last.",
        f"{SU}; {LI}, table 2",
        "claims_scores:first_last",
        POINTS + "first-last-avg minus last",
    ),
    "static-cls": Claim(
        "Averaged static word vectors beat [CLS].",
        "Reimers & Gurevych 2019 (SBERT), table 1, there GloVe",
        "claims_scores:static_against_cls",
        POINTS + "the encoder's own word embeddings minus [CLS]",
    ),
    "static-mean": Claim(
        "Averaged static word vectors beat the averaged output of the layers.",
        "Reimers & Gurevych 2019 (SBERT), table 1, there GloVe",
        "claims_scores:static_against_mean",
        POINTS + "the encoder's own word embeddings minus the mean of the uppermost layer",
    ),
    "aggregation": Claim(
        'The aggregation alone, "wmean" instead of "all", is worth more than three points.',
        "Gao et al. 2021 (SimCSE), appendix B",
        "claims_scores:aggregations_apart",
        POINTS + "wmean minus all, mean of STS12-16",
        3.0,
    ),
    "centering": Claim(
        "Centering alone helps.",
        f"{TUTORIAL}; Mu & Viswanath 2018",
        "compare:center - raw",
        POINTS + "center minus raw",
    ),
    "standardizing": Claim(
        "Standardizing each coordinate helps.",
        f"{LI}, table 5 (SN): 47.29 to 55.46",
        "compare:standardize - raw",
        POINTS + "standardize minus raw",
    ),
    "all-but-the-top": Claim(
        "Removing the mean and the top directions helps.",
        "Mu & Viswanath 2018; " + f"{LI}, table 5 (NATSV)",
        "compare:abtt(3) - raw",
        POINTS + "all-but-the-top of 3 minus raw",
    ),
    "whitening": Claim(
        "Whitening helps, fitted on the text that it is used on.",
        f"{SU}, table 1",
        "compare:whitening - raw",
        POINTS + "whitening minus raw",
    ),
    "whitening-other": Claim(
        "Whitening helps, fitted on other text.",
        f"{SU}, table 1, there NLI",
        "compare:whitening of other text - raw",
        POINTS + "whitening minus raw",
    ),
    "reduction": Claim(
        "Keeping a third of the whitened directions helps further.",
        f"{SU}, section 4.4",
        "compare:whitening(128) - whitening",
        POINTS + "whitening to 128 minus whitening to all",
    ),
    "reduction-search": Claim(
        "For search, keeping a third of the whitened directions does harm.",
        "measured here (`benchmarks/EXPLORED.md`)",
        "claims_scores:search_reduced",
        "hit@1 in percent, all directions minus 128",
        by=RETRIEVAL,
    ),
    "search": Claim(
        "Whitening helps search.",
        f"{TUTORIAL} on whitening for vector search",
        "claims_scores:search_whitened",
        "hit@1 in percent, whitening minus raw",
        by=RETRIEVAL,
    ),
    "tuned": Claim(
        "A layer that is tuned for sentences already is harmed by whitening.",
        "Gao et al. 2021 (SimCSE), table C.1 (SBERT-whitening of target text)",
        "claims_scores:tuned_layer_harmed",
        POINTS + "raw minus whitening",
    ),
    "tuned-search": Claim(
        "Whitening helps search even on a layer that is tuned for sentences already.",
        "measured here",
        "claims_scores:tuned_search",
        "hit@1 in percent, whitening minus raw",
        by=RETRIEVAL,
    ),
    "flow": Claim(
        "A flow helps.",
        f"{LI}, table 2",
        "compare:flow of part - raw",
        POINTS + "flow of all directions and of 6,000 scored sentences, one seed, minus raw",
    ),
    "flow-whitening": Claim(
        "A flow beats whitening of the same layers, fitted on the text that it is used on.",
        f"{LI}; {SU} claim the contrary",
        "compare:flow of part - whitening of part",
        POINTS + "flow minus whitening, both of all directions and of 6,000 sentences, one seed",
    ),
    "flow-whitening-other": Claim(
        "A flow beats whitening of the same layers, fitted on other text.",
        f"{LI}; {SU} claim the contrary",
        "compare:flow of part of other - whitening of part of other",
        POINTS + "flow minus whitening, both of all directions and of 6,000 sentences, one seed",
    ),
    "flow-closed": Claim(
        "The default flow beats the best closed form that could be chosen honestly, on the text that it is used on.",
        f"{LI}, table 5; `python benchmarks/standins.py`",
        "claims_scores:flow_against_chosen",
        POINTS + "default minus closed form, of 5 seeds (`benchmarks/standins.json`)",
    ),
    "flow-closed-other": Claim(
        "The default flow beats the best closed form that could be chosen honestly, fitted on other text.",
        f"{LI}; `python benchmarks/standins.py`",
        "claims_scores:flow_against_chosen_of_other_text",
        POINTS + "default minus closed form, of 5 seeds (`benchmarks/standins.json`)",
    ),
    "target": Claim(
        "Fitting on the text that is scored beats fitting on NLI, all pairs of a task ranked together.",
        "Gao et al. 2021 (SimCSE), table C.1: the contrary",
        "compare:whitening of part - whitening of NLI",
        POINTS + '"all", whitening of 6,000 scored minus of 6,000 NLI sentences',
    ),
    "target-subsets": Claim(
        "Fitting on the text that is scored beats fitting on NLI, aggregated as the paper does.",
        f"{LI}, table 2",
        "claims_scores:target_against_nli_by_subset",
        POINTS + '"wmean", whitening of 6,000 scored minus of 6,000 NLI sentences',
    ),
    "lexical": Claim(
        "A flow makes similarity depend less on shared spelling.",
        f"{LI}, table 6: -50.49 to -28.01",
        "claims_scores:lexical_bias",
        "Spearman x 100 with the edit distance in words, flow minus raw",
        by="bertflow.evaluation.edits.edit_distance",
    ),
    "sif": Claim(
        "Weighing tokens by smooth inverse frequency is, alone, worth as much as whitening.",
        "Arora et al. 2017, of word vectors",
        "compare:sif - whitening",
        POINTS + "SIF alone minus whitened mean; half a point is given",
        -0.5,
    ),
    "sif-whitening": Claim(
        "Whitening adds to smooth inverse frequency.",
        "measured here",
        "compare:sif, whitening(64) - sif",
        POINTS + "SIF whitened to 64 minus SIF alone",
    ),
}
"""By a short name."""
