"""Train a RoBERTa in small from scratch, on masked words alone: a plain encoder with byte-level BPE.

    python benchmarks/roberta.py --data_dir DATA --output FOLDER [--steps 6000]

4 layers, 256 wide, 4 heads, 16,000 pieces. The text is DATA/text: books, WikiText-2, the first column of WikiSplit,
Common Voice. Its lines follow one another with ``</s>`` between them, in windows of 64 pieces, as in RoBERTa; 15 % of
the pieces are chosen anew each time, and only these go through the head. AdamW; the learning rate rises, stays, and
falls over the last third of the steps. No dropout in training; the config says 0.1, so that "dropout on" means what it
means for BERT. A run that was killed goes on from its last checkpoint.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
import torch
from material import FIRST_OF_EACH_LINE
from numpy.typing import NDArray
from tokenizers import AddedToken, ByteLevelBPETokenizer
from torch import Tensor
from transformers import RobertaConfig, RobertaForMaskedLM, RobertaTokenizerFast

from bertflow.data.corpus import load_sentences
from bertflow.files import atomic_file, atomic_folder

FILES = (
    *(f"text/{name}.txt.gz" for name in ("books_paragraphs", "wikitext2_valid", "wikitext2_test")),
    *sorted(FIRST_OF_EACH_LINE),
    "text/commonvoice_en_sentences.txt.gz",
)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""In RoBERTa's order: padding is 1."""
VOCABULARY, POSITIONS, WINDOW, BATCH, MASKED, SAVED_EVERY = 16_000, 128, 64, 64, 0.15, 100
PEAK, WARMUP, FALLING = 1e-3, 200, 1 / 3
"""Learning rate; the steps over which it rises, and the share of all over which it falls to zero."""


def write_tokenizer(lines: list[str], folder: Path) -> None:
    """A byte-level BPE of the text, saved as RoBERTa's: the space before a mask is a part of it."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(lines, vocab_size=VOCABULARY, min_frequency=2, special_tokens=list(SPECIAL))
    with atomic_folder(folder) as aside:
        trained.save_model(str(aside))
        files = {"vocab": str(aside / "vocab.json"), "merges": str(aside / "merges.txt")}
        mask = AddedToken("<mask>", lstrip=True, special=True)
        RobertaTokenizerFast(**files, mask_token=mask, model_max_length=POSITIONS).save_pretrained(aside)


def windows(lines: list[str], tokenizer: RobertaTokenizerFast) -> NDArray[np.int64]:
    """Token ids (windows, 64): the text from beginning to end, each window between ``<s>`` and ``</s>``."""
    pieces: list[int] = []
    for start in range(0, len(lines), 10_000):
        for ids in tokenizer(lines[start : start + 10_000], add_special_tokens=False)["input_ids"]:
            pieces += [*ids, tokenizer.sep_token_id]
    inside = WINDOW - 2
    rows = np.array(pieces[: len(pieces) // inside * inside], dtype=np.int64).reshape(-1, inside)
    return np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (tokenizer.cls_token_id, tokenizer.sep_token_id)))


def masked(ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The batch as the model sees it, and which of its pieces are to be told: 80 % masked, 10 % replaced, 10 % kept."""
    chosen = (torch.rand(ids.shape, generator=generator) < MASKED) & (ids >= len(SPECIAL))
    how = torch.rand(ids.shape, generator=generator)
    seen = ids.masked_fill(chosen & (how < 0.8), SPECIAL.index("<mask>"))
    others = torch.randint(len(SPECIAL), VOCABULARY, ids.shape, generator=generator)
    return torch.where(chosen & (how >= 0.9), others, seen), chosen


def train(rows: NDArray[np.int64], steps: int, checkpoint: Path) -> RobertaForMaskedLM:
    """The model after all steps; a pass takes the windows in an order of its own."""
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    shape |= {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
    model = RobertaForMaskedLM(RobertaConfig(**shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    parts, first, each = {"model": model, "optimizer": optimizer}, 0, len(rows) // BATCH
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        first = state["step"]
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for step in range(first, steps):
        order = np.random.default_rng([0, step // each]).permutation(len(rows))
        ids = torch.from_numpy(rows[order[step % each * BATCH :][:BATCH]])
        seen, chosen = masked(ids, torch.Generator().manual_seed(step))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.lm_head(model.roberta(seen).last_hidden_state[chosen])
        loss = torch.nn.functional.cross_entropy(logits.float(), ids[chosen])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min(1.0, (step + 1) / WARMUP, (steps - step) / (steps * FALLING))
        optimizer.step()
        if (step + 1) % SAVED_EVERY == 0 or step + 1 == steps:
            logging.info("step %d of %d, cross-entropy %.3f", step + 1, steps, loss.item())
            with atomic_file(checkpoint) as path:
                torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step + 1}, path)
    return model


def main() -> None:
    """Train, unless that is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds text")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6_000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    columns = {file: ["1"] if file in FIRST_OF_EACH_LINE else None for file in FILES}
    lines = [line for file in FILES for line in load_sentences(options.data_dir / file, columns[file])]
    work = options.output.with_name(options.output.name + ".training")
    if not (work / "tokenizer").exists():
        write_tokenizer(lines, work / "tokenizer")
    tokenizer = RobertaTokenizerFast.from_pretrained(work / "tokenizer")
    model = train(windows(lines, tokenizer), options.steps, work / "checkpoint.pt").half()
    model.config.update({"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    with atomic_folder(options.output) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)


if __name__ == "__main__":
    main()
