"""The claims about how well sentences are compared and found: poolings, calibrators, text to fit on."""

from collections.abc import Mapping

from claims_rules import Claim

LI = "Li et al. 2020 (BERT-flow)"
SU = "Su et al. 2021 (BERT-whitening)"
TUTORIAL = "tutorials"
RETRIEVAL = "bertflow.evaluation.figures.right_ranks"
POINTS = "points of Spearman x 100, "

SIMILARITY: Mapping[str, Claim] = {
    "cls": Claim(
        "[CLS] is worse than the mean of the tokens.",
        "[CLS] is not worse than the mean of the tokens.",
        "Reimers & Gurevych 2019 (SBERT), table 1",
        "claims_scores:mean_against_cls",
        POINTS + "mean less [CLS] of the same layer",
    ),
    "second-to-last": Claim(
        "The second-to-last layer is better than the last.",
        "The second-to-last layer is not better than the last.",
        f"{TUTORIAL} (bert-as-service, its default)",
        "claims_scores:second_to_last",
        POINTS + "second-to-last less last",
    ),
    "first-last": Claim(
        "The average of the first and last layer is better than the last.",
        "The average of the first and last layer is not better than the last.",
        f"{SU}; {LI}, table 2",
        "claims_scores:first_last",
        POINTS + "first-last-avg less last",
    ),
    "static-cls": Claim(
        "Averaged static word vectors beat [CLS].",
        "Averaged static word vectors do not beat [CLS].",
        "Reimers & Gurevych 2019 (SBERT), table 1, there GloVe",
        "claims_scores:static_against_cls",
        POINTS + "the encoder's own word embeddings less [CLS]",
    ),
    "static-mean": Claim(
        "Averaged static word vectors beat the averaged output of the layers.",
        "Averaged static word vectors do not beat the averaged output of the layers.",
        "Reimers & Gurevych 2019 (SBERT), table 1, there GloVe",
        "claims_scores:static_against_mean",
        POINTS + "the encoder's own word embeddings less the mean of the uppermost layer",
    ),
    "aggregation": Claim(
        'The aggregation alone, "wmean" instead of "all", is worth more than three points.',
        'The aggregations "wmean" and "all" are within three points of each other.',
        "Gao et al. 2021 (SimCSE), appendix B",
        "claims_scores:aggregations_apart",
        POINTS + "wmean less all, mean of STS12-16",
        3.0,
    ),
    "centering": Claim(
        "Centering alone helps.",
        "Centering alone does not help.",
        f"{TUTORIAL}; Mu & Viswanath 2018",
        "compare:center - raw",
        POINTS + "center less raw",
    ),
    "standardizing": Claim(
        "Standardizing each coordinate helps.",
        "Standardizing each coordinate does not help.",
        f"{LI}, table 5 (SN): 47.29 to 55.46",
        "compare:standardize - raw",
        POINTS + "standardize less raw",
    ),
    "all-but-the-top": Claim(
        "Removing the mean and the top directions helps.",
        "Removing the mean and the top directions does not help.",
        "Mu & Viswanath 2018; " + f"{LI}, table 5 (NATSV)",
        "compare:abtt(3) - raw",
        POINTS + "all-but-the-top of 3 less raw",
    ),
    "whitening": Claim(
        "Whitening helps, fitted on the text that it is used on.",
        "Whitening does not help, even fitted on the text that it is used on.",
        f"{SU}, table 1",
        "compare:whitening - raw",
        POINTS + "whitening less raw",
    ),
    "whitening-other": Claim(
        "Whitening helps, fitted on other text.",
        "Whitening that was fitted on other text does not help.",
        f"{SU}, table 1, there NLI",
        "compare:whitening of other text - raw",
        POINTS + "whitening less raw",
    ),
    "reduction": Claim(
        "Keeping a third of the whitened directions helps further.",
        "Keeping a third of the whitened directions does not help further.",
        f"{SU}, section 4.4",
        "compare:whitening(128) - whitening",
        POINTS + "whitening to 128 less to all",
    ),
    "reduction-search": Claim(
        "For search, keeping a third of the whitened directions does harm.",
        "For search, keeping a third of the whitened directions does no harm.",
        "measured here (`benchmarks/EXPLORED.md`)",
        "claims_scores:search_reduced",
        "hit@1 in percent, all directions less 128",
        by=RETRIEVAL,
    ),
    "search": Claim(
        "Whitening helps search.",
        "Whitening does not help search.",
        f"{TUTORIAL} on whitening for vector search",
        "claims_scores:search_whitened",
        "hit@1 in percent, whitening less raw",
        by=RETRIEVAL,
    ),
    "tuned": Claim(
        "A layer that is tuned for sentences already is harmed by whitening.",
        "A layer that is tuned for sentences already is not harmed by whitening.",
        "Gao et al. 2021 (SimCSE), table C.1 (SBERT-whitening of target text)",
        "claims_scores:tuned_layer_harmed",
        POINTS + "raw less whitening",
    ),
    "tuned-search": Claim(
        "Whitening helps search even on a layer that is tuned for sentences already.",
        "Whitening does not help search on a layer that is tuned for sentences already.",
        "measured here",
        "claims_scores:tuned_search",
        "hit@1 in percent, whitening less raw",
        by=RETRIEVAL,
    ),
    "flow": Claim(
        "A flow helps.",
        "A flow does not help.",
        f"{LI}, table 2",
        "compare:flow of part - raw",
        POINTS + "flow of all directions and of 6,000 scored sentences, one seed, less raw",
    ),
    "flow-whitening": Claim(
        "A flow beats whitening of the same layers, fitted on the text that it is used on.",
        "A flow does not beat whitening of the same layers, even fitted on the text that it is used on.",
        f"{LI}; {SU} claim the contrary",
        "compare:flow of part - whitening of part",
        POINTS + "flow less whitening, both of all directions and of 6,000 sentences, one seed",
    ),
    "flow-whitening-other": Claim(
        "A flow beats whitening of the same layers, fitted on other text.",
        "A flow does not beat whitening of the same layers where both were fitted on other text.",
        f"{LI}; {SU} claim the contrary",
        "compare:flow of part of other - whitening of part of other",
        POINTS + "flow less whitening, both of all directions and of 6,000 sentences, one seed",
    ),
    "flow-closed": Claim(
        "The default flow beats the best closed form that could be chosen honestly, on the text that it is used on.",
        "The default flow does not beat the best closed form that could be chosen honestly.",
        f"{LI}, table 5; `python benchmarks/standins.py`",
        "claims_scores:flow_against_chosen",
        POINTS + "default less closed form, of 5 seeds (`benchmarks/standins.json`)",
    ),
    "flow-closed-other": Claim(
        "The default flow beats the best closed form that could be chosen honestly, fitted on other text.",
        "The default flow does not beat the best closed form that could be chosen honestly, on other text.",
        f"{LI}; `python benchmarks/standins.py`",
        "claims_scores:flow_against_chosen_of_other_text",
        POINTS + "default less closed form, of 5 seeds (`benchmarks/standins.json`)",
    ),
    "target": Claim(
        "Fitting on the text that is scored beats fitting on NLI, all pairs of a task ranked together.",
        "Fitting on the text that is scored does not beat fitting on NLI, all pairs of a task ranked together.",
        "Gao et al. 2021 (SimCSE), table C.1: the contrary",
        "compare:whitening of part - whitening of NLI",
        POINTS + '"all", whitening of 6,000 scored less of 6,000 NLI sentences',
    ),
    "target-subsets": Claim(
        "Fitting on the text that is scored beats fitting on NLI, aggregated as the paper does.",
        "Fitting on the text that is scored does not beat fitting on NLI, aggregated as the paper does.",
        f"{LI}, table 2",
        "claims_scores:target_against_nli_by_subset",
        POINTS + '"wmean", whitening of 6,000 scored less of 6,000 NLI sentences',
    ),
    "lexical": Claim(
        "A flow makes similarity depend less on shared spelling.",
        "A flow does not make similarity depend less on shared spelling.",
        f"{LI}, table 6: -50.49 to -28.01",
        "claims_scores:lexical_bias",
        "Spearman x 100 with the edit distance in words, flow less raw",
        by="bertflow.evaluation.edits.edit_distance",
    ),
    "sif": Claim(
        "Weighing tokens by smooth inverse frequency is, alone, worth as much as whitening.",
        "Weighing tokens by smooth inverse frequency is worth less than whitening.",
        "Arora et al. 2017, of word vectors",
        "compare:sif - whitening",
        POINTS + "SIF alone less whitened mean; half a point is given",
        -0.5,
    ),
    "sif-whitening": Claim(
        "Whitening adds to smooth inverse frequency.",
        "Whitening adds nothing to smooth inverse frequency.",
        "measured here",
        "compare:sif, whitening(64) - sif",
        POINTS + "SIF whitened to 64 less SIF alone",
    ),
}
"""By a short name."""
