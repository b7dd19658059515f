"""``bertflow finetune``: fine-tune an encoder on pairs; what is left is a run folder with a model folder in it.

Help needs none of the heavy libraries, so they are loaded when there is something to do.
"""

from collections.abc import Sequence

HELP = """usage: bertflow finetune [--config FILE.yaml] --data.pairs FILE [options]

Fine-tunes an encoder on pairs of sentences, as SBERT does: the encoder reads both sides, and learns to tell classes
apart (SNLI, MNLI), to meet scores (STS), or to find the answer to a question. The result, RUN/encoder, is a model
folder: python train.py --encoder.model RUN/encoder fits a flow to it. Options come from --config, a file that may hold
any of them, and from the command line, which comes last.

  --output DIR             the run folder; must not exist or be empty (default: runs/<objective>-<time>)
  --resume auto            continue the run in --output, or begin it where there is none; or a checkpoint of a run
  --seed_everything N      of the order of the pairs, dropout, and which pairs are held out (default: 0)

pairs
  --data.pairs FILE        or [A,B]: tsv, csv, jsonl, parquet, by objective:
                             classification       premise, hypothesis, label; or SNLI and MNLI as they were given out
                             regression           sentence1, sentence2, score
                             in-batch-negatives   question, answer; text, paraphrase; or two columns without a header
  --data.tasks TASKS       for regression instead, or as well: STS tasks, as stsb-train; needs --data.data_dir
  --data.data_dir DIR      where STS tasks lie
  --data.classes [A,B]     names of the classes (default: contradiction, entailment, neutral)
  --data.only CLASS        for in-batch-negatives from labelled pairs: those of this class, as entailment
  --data.top_score S       the highest score of --data.pairs (default: 5)
  --data.leave_out TASKS   drop pairs of which a sentence stands in these STS tasks, as sts7,tuning
  --data.max_pairs N       a random sample

encoder
  --encoder.model M        hub id or folder (default: the embedded one)
  --encoder.pooling P      mean, cls, first-last-avg, mean(1,2), sif(3), ... (default: the folder's)
  --encoder.max_length N   tokens (default: 64)
  --encoder.device, .revision, .prompt

fine-tuning
  --finetune.objective O   classification, regression or in-batch-negatives (default: classification)
  --finetune.learning_rate, .batch_size, .epochs, .warmup, .scale, .two_sided, .held_out, .gradient_checkpointing, ...

training
  --trainer.OPTION         any option of Lightning's Trainer: precision, accumulate_grad_batches, devices, ...

  --print_config           print all options with their values, and stop
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(HELP)
        return 0
    from bertflow.cli.finetune_run import run

    return run(argv)
