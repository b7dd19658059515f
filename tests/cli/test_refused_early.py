"""What is wrong by itself on a command line is refused before text, weights or docstrings are read.

Names, numbers and paths: a row is a command, what is wrong, and a part of the one line. What is slow is out of reach in
the test, so that a check that comes too late shows as another error.
"""

import pytest

from bertflow.encoder.model import BlockStack

from .test_every_command import LINES, PARSED_SLOWLY, words

CALLS = LINES | {
    "fix": "fix BERT text.txt --output out/new",
    "fix nothing": "fix --output out/new",
    "finetune on text": "finetune --objective simcse text.txt --encoder.model=BERT --output=out/new",
    "embed nothing": "embed --store out/new",
    "reindex": "reindex lancedb:db/docs lancedb:db/new --calibrator center --model BERT --output out/new",
    "adapt": "adapt BERT text.txt --output out/new",
    "evaluate": "evaluate BERT --tasks mine --data_dir data",
    "evaluate nothing": "evaluate --tasks mine --data_dir data",
    "sweep nothing": "sweep BERT",
    "tokens of nothing": "tokens --model BERT",
    "words of nothing": "words --model BERT",
    "score": "score BERT labels.tsv --fit_on text.txt",
    "score nothing": "score BERT",
    "doctor of nothing": "doctor --golden exported",
}
"""What every call of a command begins with."""
ENCODER = {
    "--pooling nonsense": "Unknown pooling 'nonsense'",
    "--pooling mean(99)": "Pooling mean(99) reads layer 99, but the encoder has 4 blocks",
    "--dtype nonsense": "Unknown dtype 'nonsense'",
    "--device nonsense": "The device 'nonsense' cannot be used",
    "--max_length 0": "max_length should be 1 or more, got 0",
    "--max_length nan": "The option --max_length cannot be nan",
    "--max_length 9999": "max_length must be from 3 to 64 tokens for this model, got 9999",
    "--chunks tokens:9999": "A chunk of 9999 tokens is wanted, but max_length=64 has room for 62",
    "--chunks nonsense": "Chunks are spelled tokens or sentences",
    "--template {}[MASK]": "A template is for the poolings mask and denoised-mask, not mean",
    "--pooling mask --template {}": "A template holds {} and [MASK] once each",
    "--pooling mask --template [MASK]{}[MASK]": "A template holds {} and [MASK] once each",
    "--pooling mask --max_length 9": "max_length must be from 11 to 64 tokens for this model, got 9",
    "--revision x": "A revision ('x') is for hub ids",
}
"""Options of the encoder that cannot be used -> a part of what is said."""
SEED = {"--seed -1": "seed should be from 0 to 4,294,967,295, got -1", "--seed 4294967296": "seed should be from 0"}
RESAMPLES = {"--resamples -1": "resamples should be", "--resamples 99999999999": "got 99,999,999,999"}
TRAINER = {
    "--trainer.accelerator nonsense": "invalid accelerator name",
    "--trainer.precision 16-true": "precision",
    "--trainer.devices -5": "Lightning's Trainer refuses its options",
    "--trainer.strategy nonsense": "invalid strategy name",
    "--seed_everything -1": "seed should be from 0",
    "--encoder.pooling nonsense": "Unknown pooling",
    "--encoder.pooling mean(99)": "the encoder has 4 blocks",
    "--encoder.device nonsense": "The device 'nonsense' cannot be used",
    "--output text.txt": "text.txt",
    "--encoder.max_length 9999": "max_length must be from 3 to 64 tokens",
}
TWO_RANKS = "--trainer.accelerator cpu --trainer.devices 2"
EARLY = {
    "demo": SEED | {"--sentences 1": "sentences should be 2 or more", "--pairs 0": "pairs should be 3 or more"},
    "fix": ENCODER
    | SEED
    | RESAMPLES
    | {
        "--candidates nonsense": "Unknown baseline 'nonsense'",
        "--candidates mean(1)": "A candidate is a calibrator, as whitening(64), a pooling that weights tokens,",
        "--purpose nonsense": "purpose cannot be nonsense",
        "--max_sentences 0": "max_sentences should be 1 or more",
        "--max_pairs -1": "max_pairs should be 1 or more",
        "--labels missing.tsv": "missing.tsv is missing",
        "--queries missing.txt": "missing.txt is missing",
        "--output db": "db is not empty. Choose another --output, as db-2.",
    },
    "fix nothing": {
        "BERT": "An encoder and a text are needed, as `bertflow fix MODEL TEXT`. Give both, or --vectors.",
        "--vectors missing.npy": "missing.npy is missing. Give the path of an existing file.",
        "--vectors x.npy --pooling cls": ("--vectors takes only the text of the vectors, got --pooling. Leave it out."),
    },
    "train": TRAINER
    | {
        "--flow.preset nonsense": "Unknown preset",
        "--flow.batch_size 0": "batch_size",
        "--flow.learning_rate nan": "learning_rate cannot be nan",
        "--flow.preset paper-tf --purpose search": (
            "The purpose search uses the preset search-2, but the preset paper-tf is given"
        ),
        "--data.tasks stsb": "Text comes from --data.sentences or from --data.tasks, but both were given.",
        "--data.sentences [BERT,text.txt]": "BERT is not a file of text. If it is your encoder, write: bertflow train "
        "--encoder.model BERT --data.sentences text.txt",
        "--data.sentences bert-base": "write: bertflow train --encoder.model bert-base --data.sentences FILE",
        "--flow.n_components 17": "n_components should be from 1 to 16, got 17.",
        "--flow.n_components -1": "flow.n_components must be at least 1, got -1",
        "--data.max_sentences 0": "max_sentences should be 2 or more",
        "--data.sentences missing.txt": "missing.txt is missing",
        "--data.store text.txt/a": "text.txt/a: Not a directory",
        "--data.columns a": "text.txt is text in lines, which has no columns, got a",
        "--flow.max_length 9999": "max_length must be from 3 to 64 tokens",
        f"--flow.batch_size 1 {TWO_RANKS} --data.store out/store": "Each of 2 processes needs a row of every batch",
        "--resume nonsense": "nonsense",
    },
    "finetune": TRAINER
    | {
        "--encoder.dtype float16": "Weights are trained in float32",
        "--finetune.objective nonsense": "nonsense",
        "--finetune.joint nonsense": "Unknown joint loss",
        "--data.pairs missing.tsv": "missing.tsv is missing",
        "--data.max_pairs 0": "max_pairs should be 1 or more",
        "--data.top_score -1": "top_score should be 1 or more",
        "--finetune.max_length 9999": "max_length must be from 3 to 64 tokens",
        f"--finetune.batch_size 15 {TWO_RANKS}": "must be a multiple of 2, got 15",
        "--data.tasks stsb": "The option --data.tasks means nothing to classification. Leave it out.",
        "--data.only neutral": "The option --data.only means nothing to classification. Leave it out.",
        "--data.leave_out sts7": "STS tasks need the folder they lie in. Give --data.data_dir.",
        "--data.pairs null": "The objective classification needs pairs. Give a file with --data.pairs.",
        "--data.pairs null --finetune.objective regression": "needs pairs. Give a file with --data.pairs or STS tasks",
        "--data.leave_out nonsense --data.data_dir data": "Unknown task 'nonsense'",
    },
    "finetune on text": {
        "--data.pairs other.tsv": "Unrecognized arguments: text.txt. `bertflow finetune --print_config` shows all",
        "--data.only entailment": "The option --data.only means nothing to simcse. Leave it out.",
        "--objective in-batch-negatives --data.columns [a]": "data.columns means nothing to in-batch-negatives.",
    },
    "embed": ENCODER
    | {
        "--storage nonsense": "Unknown store dtype",
        "--max_length 2": "max_length must be from 3 to 64 tokens for this model, got 2",
        "--columns x": "text.txt is text in lines, which has no columns, got x",
        "--shards 0": "shards should be from 1 to 99,999, got 0",
        "--shards 100000": "got 100,000",
        "--model no/such/folder": "no/such/folder does not exist",
        "--verify": "verify reads the store alone, but text is given (text.txt). Leave one out.",
    },
    "embed nothing": {"--model BERT": "Text is wanted, got none. Name files or hub:owner/name, or give --verify"},
    "fit": {
        "--calibrator nonsense": "Unknown calibrator 'nonsense'",
        "--calibrator abtt(-1)": "abtt takes a number in brackets, got (-1)",
        "--calibrator flow --seed -1": "seed should be from 0",
        "--calibrator flow --preset nonsense": "Unknown preset",
        "--calibrator flow(0)": "n_components",
        "--output db": "db is not empty. Choose another --output, as db-2.",
        "--seed 1": "seed is for a flow, but abtt(1) has none. Leave it out.",
    },
    "transform": {"--output out/z.txt": "Plain vectors are written to .npy or .parquet"},
    "reindex": ENCODER
    | {
        "--calibrator nonsense": "Unknown calibrator 'nonsense'",
        "--calibrator fitted --fit_rows 9": "fit_rows is for a fit, but fitted is fitted already",
        "--preset default": "preset is for a flow",
        "--calibrator flow --seed -1": "seed should be from 0",
        "--fit_rows 1": "fit_rows should be 2 or more, got 1",
        "--part_rows 0": "part_rows should be 1 or more, got 0",
        "--output db": "db should be a reindex job, new or begun, but holds docs.lance",
    },
    "adapt": ENCODER
    | {
        "--queries missing.txt": "missing.txt is missing",
        "--columns x": "text.txt is text in lines, which has no columns, got x",
        "--index faq.index": "One of text and --index is wanted, got text and",
        "--output data": "data",
    },
    "evaluate": ENCODER
    | SEED
    | RESAMPLES
    | {
        "--tasks nonsense": "Unknown task 'nonsense'",
        "--similarity nonsense": "Unknown similarity",
        "--aggregation nonsense": "Unknown aggregation",
        "--compare nonsense": "Unknown baseline",
        "--fit_on missing.txt --compare center": "missing.txt is missing",
        "--seeds 0": "seeds should be 1 or more",
        "--seeds 2": "seeds fits one flow again, but none of BERT (raw) is a flow",
        "--compare sif": "sif needs text to be fitted on",
        "--compare center": "center needs text to be fitted on",
        "--fail_below stsb=3": "There is a threshold for stsb, which is not scored. Scored: mine",
        "--lexical nonsense": "Unknown task",
        "--fail_below mine=nan": "A threshold is written task=score",
        "--published nonsense": "No published figures hold 'nonsense'",
        "--retrieval missing.tsv": "missing.tsv is missing",
        "--binary missing.tsv": "missing.tsv is missing",
        "--tasks sts12": "The task sts12 should be in ",
        "--published": "The published figures are those of sts12, ",
        "--ceiling --retrieval labels.tsv": "The ceiling is learned from graded pairs, but another table was given.",
        "--fit_on eval": "--fit_on is for baselines, but there are none.",
        "--output db": "Output folder db is not empty. Choose another --output, as db-2.",
    },
    "evaluate nothing": {
        "one=no/such/e": "The model folder no/such/e does not exist. Give an existing folder, or a hub id.",
        "no/such/lr=1/e": "The model folder no/such/lr=1/e does not exist.",
    },
    "sweep": {option: said for option, said in ENCODER.items() if "pooling" not in option}
    | {
        "--tokens nonsense": "Unknown token reduction",
        "--fit_on missing.txt": "missing.txt is missing",
        "--layers 99": "layers go from 0 (embedding layer) to 4 for this encoder, got 99",
        "--layers nonsense": "layers should be numbers with commas",
        "--labels labels.tsv --compare sn": "tasks is for STS tasks, not for labels.",
        "--columns 1,2": "The option --columns needs labels, or a table in tasks.",
        "--folds 3": "--folds needs labels",
        "--output db": "Output folder db is not empty. Choose another --output, as db-2.",
        "--tasks nonsense": "Unknown task",
    },
    "sweep nothing": {"--layers 0": "A sweep needs scores or labels to judge by, got none. Give --tasks: a table with"},
    "verify-paper": {"--device nonsense": "The device", "--max_length 0": "max_length should be 1 or more"},
    "paper-tables": {
        "--device nonsense": "The device",
        "--tasks stsb-dev": "Unknown task of the tables",
        "--seeds 0": "seeds should be 1 or more",
        "--line 9": "line should be from 1 to",
        "--max_sentences 1": "max_sentences should be 2 or more",
        "--resamples -1": "resamples should be",
        "--nli missing.txt": "missing.txt is missing",
        "--nli_models BERT": "Two encoders are called 'BERT'",
    },
    "inspect": SEED
    | {
        "--pooling nonsense": "Unknown pooling",
        "--max_length 0": "max_length should be",
        "--device nonsense": "The device",
        "--compare nonsense": "Unknown baseline",
        "--sentences -1": "sentences should be",
        "--pairs nonsense": "Unknown task",
        "--output db": "Output folder db is not empty. Choose another --output, as db-2.",
        "--figures BERT": "Output folder BERT is not empty. Choose another --figures, as BERT-2.",
        "--max_length 9999": "max_length must be from 3 to 64 tokens",
        "--frequencies missing.txt": "missing.txt is missing",
        "--pairs missing.tsv": "missing.tsv",
        "--pairs sts12,sts13 --data_dir data": "pairs takes one task, got 2: sts12, sts13. Choose one.",
    },
    "tokens": {"--model no/such/folder": "does not exist", "--model BERT --segment 9": "it knows segments 0 to 1"},
    "tokens of nothing": {
        "": "One of texts, pair and vocabulary is wanted, got none. Give one.",
        "a --pair a b": "One of texts, pair and vocabulary is wanted, got texts and pair. Give one.",
        "--vocabulary --segment 1": "segment is for texts, not for the vocabulary. Leave one out.",
    },
    "words of nothing": {
        "": "Words with sentences (--in), or a study, are wanted; got neither. Give one of them.",
        "man dog": "Both words and sentences are needed, but a sentence (--in) is missing. Give both.",
        "--in man": "Both words and sentences are needed, but the words to look for are missing. Give both.",
        "--study bank --format svg": "format is for the pictures in the folder output. Give both or neither.",
        "--study banks": "Unknown study 'banks'. Known: king-queen, bank, bank-separate; or a JSON file of yours.",
    },
    "words": {
        "--pooling nonsense": "Unknown pooling",
        "--pooling mean(99)": "the encoder has 4 blocks",
        "--study nonsense": "got both",
        "--segment -1": "Segment -1 was asked for",
        "--format gif": "format cannot be gif",
    },
    "compare": ENCODER
    | SEED
    | {
        "--queries missing.txt": "missing.txt is missing",
        "--max_sentences 9": "max_sentences should be 10 or more, got 9",
        "--columns a": "text.txt is text in lines, which has no columns, got a",
    },
    "export": ENCODER
    | {
        "--target onxx": "Choose from sentence-transformers, onnx, safetensors. Did you mean onnx?",
        "--layout nonsense": "Unknown layout",
        "--int8": "--int8 is for the target onnx",
        "--layout modern --target onnx": "--layout is for the target sentence-transformers, got onnx",
        "--linearize": "--linearize is for a flow, but this is a raw encoder",
        "--linearize --text missing.txt": "missing.txt is missing",
        "--results missing.json": "missing.json is missing",
        "--push nonsense": "--push takes OWNER/NAME, got 'nonsense'.",
        "--text labels.tsv": "--text is for --linearize. Add --linearize, or leave --text out.",
        "--tasks stsb": "--tasks and --data_dir are for --linearize and --int8. For scores use `bertflow evaluate`.",
        "--private": "--private is for --push. Add --push OWNER/NAME, or leave it out.",
        "--output BERT": "BERT is not empty and is not an earlier export",
    },
    "score": ENCODER
    | SEED
    | {
        "--method nonsense": "Unknown method",
        "--density nonsense": "Unknown calibrator",
        "--false_match_rate 0": "false_match_rate should be",
        "--false_match_rate nan": "false_match_rate cannot be nan",
        "--max_sentences -1": "max_sentences should be 2 or more",
        "--domain missing.txt": "missing.txt is missing",
        "--columns a": "--columns takes two columns of text, as a,b or 1,2; got 'a'.",
        "--output out/a.xyz": "Unknown ending",
        "--save text.txt/a": "text.txt/a: Not a directory",
        "--save BERT": "BERT is not empty and is not an encoder that was saved with its scores",
        "--precision 2 --labels labels.tsv": "A precision lies above 0 and is at most 1, got 2",
        "--precision 0.9": "A precision needs labeled pairs",
    },
    "score nothing": {
        "": "There is nothing to score. Give a table of PAIRS, or a text with --domain.",
        "labels.tsv --save out/x": "--save needs --fit_on TEXT. Add it, or leave --save out.",
        "labels.tsv --domain nli.tsv --output o.csv": "--output holds one table, but both PAIRS and --domain",
        "labels.tsv": "BERT holds no scores.json. Fit the scores to your text: add --fit_on TEXT.",
        "labels.tsv --fail_on_drift": "--fail_on_drift needs the text to look at. Give it with --domain TEXT.",
        "--domain nli.tsv": "BERT holds no domain/. Say what ordinary text is: add --fit_on TEXT.",
    },
    "search build": ENCODER
    | {
        "--answers missing.tsv": "missing.tsv is missing",
        "--chunks tokens:8:2:mean": "keeps each chunk and pools none",
    },
    "search add": {"--answers missing.tsv": "missing.tsv is missing", "--device nonsense": "The device"},
    "search remove": {"--device nonsense": "The device", "cats": "'cats' is not in faq.index"},
    "search recalibrate": {"--device nonsense": "The device", "--model no/such/folder": "does not exist"},
    "search ask": {"-k 0": "k should be 1 or more", "--engine nonsense": "Unknown engine"},
    "search evaluate": RESAMPLES | SEED | {"-k 0": "k should be 1", "--labels missing.tsv": "missing.tsv is missing"},
    "search example": SEED | {"--answers 0": "answers should be 1 or more", "--sentences -1": "sentences should be 1"},
    "serve": {
        "--port 65536": "port should be from 0 to 65,535",
        "--host nonsense": "The host should be an address of this machine",
        "--device nonsense": "The device 'nonsense' cannot be used",
        "--timeout nan": "timeout cannot be nan",
        "--connections 0": "Limits must be above zero",
    },
    "doctor of nothing": {
        "": "One of --url and --model is wanted, got none.",
        "--model data": "data cannot be run here: it holds none of",
    },
    "doctor": {"--batch 0": "batch should be 1 or more", "--key NO_SUCH": "NO_SUCH, which is not set"},
}
"""A command -> what is wrong with a name, a number or a path -> a part of what is said."""


OF_DATA = ("missing", "no/such", " text.txt", "--resume", "cats", "--tasks sts12")
"""What shows that a file or a place is wrong: exit code 3."""


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        pytest.param(command, wrong, marks=pytest.mark.slow if command.startswith(PARSED_SLOWLY) and at else ())
        for command, rows in EARLY.items()
        for at, wrong in enumerate(rows)
    ],
)
def test_what_is_wrong_by_itself_is_refused_before_anything_is_read(command, wrong, place, nothing_is_read, refused):
    code = 3 if any(word in wrong for word in OF_DATA) else 2
    assert EARLY[command][wrong] in refused(code, *words(CALLS[command]), *wrong.split())


def test_a_text_that_has_a_name_is_not_given_by_place(place, refused):
    said = refused(2, "inspect", "BERT", "text.txt")
    assert "Unrecognized arguments: text.txt. Text is given by --text text.txt. `bertflow inspect --help`" in said
    said = refused(2, "search", "build", "new.index", "text.txt")
    assert "Unrecognized arguments: text.txt. Answers are given by --answers text.txt. " in said


HEADERS = {
    "fix BERT nli.tsv --columns no,text --output out/new": "nli.tsv has no column 'no'",
    "train --encoder.model=BERT --data.sentences=nli.tsv --data.columns=[a] --output=out/new": "has no column 'a'",
    "embed nli.tsv --model BERT --columns no --store out/new": "nli.tsv has no column 'no'",
    "adapt BERT nli.tsv --columns no --output out/new": "nli.tsv has no column 'no'",
    "compare BERT BERT nli.tsv --queries text.txt --columns no": "nli.tsv has no column 'no'",
    "score BERT nli.tsv --columns no,premise --fit_on text.txt": "nli.tsv has no column 'no'",
    "search build out/new --answers answers.tsv --columns no,text --model BERT": "answers.tsv has no column 'no'",
    "search build out/new --answers right.tsv --model BERT": "right.tsv should have the columns",
    "search add faq.index --answers right.tsv --model BERT": "right.tsv should have the columns",
    "score BERT --fit_on text.txt --labels nli.tsv --save out/new": "nli.tsv should have the columns",
    "evaluate BERT --tasks nli.tsv": "nli.tsv should have the columns",
    "sweep BERT --labels labels.tsv": "labels.tsv should have the columns",
    "finetune --encoder.model=BERT --data.pairs=right.tsv --output=out/new": "right.tsv should have the columns",
}
"""A command line with a wrong header -> a part of what is said."""
MODEL_UNOPENED = ("fix", "train", "embed", "adapt", "compare")
"""Commands in which it is said even where there is no such model."""


@pytest.mark.parametrize("line", HEADERS)
def test_a_wrong_header_is_refused_before_the_weights_are_loaded(line, place, monkeypatch, refused):
    monkeypatch.setattr(BlockStack, "load", None)
    line = line.replace("BERT", "no/such/folder") if line.startswith(MODEL_UNOPENED) else line
    assert HEADERS[line.replace("no/such/folder", "BERT")] in refused(3, *line.split())
