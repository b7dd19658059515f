"""Train a RoBERTa in small from scratch, on masked words alone: a plain encoder with byte-level BPE.

    python benchmarks/roberta.py --data_dir DATA --output FOLDER

4 layers, 256 wide, 4 heads, 16,000 pieces. The text is DATA/text: books, WikiText-2, the first column of WikiSplit,
Common Voice. Its lines follow one another with ``</s>`` between them, in windows of 64 pieces, as in RoBERTa; 15 % of
the pieces are chosen anew each time, and only these go through the head. AdamW; the learning rate rises, stays, and
falls over the last third of the steps. No dropout in training; the config says 0.1, so that "dropout on" means what it
means for BERT.

A run that was killed goes on from its last checkpoint. The folder opens with ``AutoModelForMaskedLM`` and
``AutoTokenizer``; its README.md holds what was measured.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from closed_forms import CLOSED_FORMS, applied
from material import FIRST_OF_EACH_LINE, Material
from numpy.typing import NDArray
from tokenizers import AddedToken, ByteLevelBPETokenizer
from torch import Tensor
from transformers import AutoTokenizer, RobertaConfig, RobertaForMaskedLM, RobertaTokenizerFast

from bertflow.data.corpus import load_sentences
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import atomic_file, atomic_folder, write_text
from bertflow.moments import Moments
from bertflow.onednn import cpu_facts

FILES = (
    "text/books_paragraphs.txt.gz",
    "text/wikitext2_valid.txt.gz",
    "text/wikitext2_test.txt.gz",
    *sorted(FIRST_OF_EACH_LINE),
    "text/commonvoice_en_sentences.txt.gz",
)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""In RoBERTa's order: padding is 1."""
VOCABULARY = 16_000
POSITIONS = 128
WINDOW = 64
BATCH = 64
MASKED = 0.15
PEAK = 1e-3
WARMUP = 200
FALLING = 1 / 3
"""Share of the steps over which the learning rate falls to zero."""
SAVED_EVERY = 120.0
"""Seconds."""
logger = logging.getLogger("roberta")


def read_lines(data_dir: Path) -> list[str]:
    """All lines of the text, in order."""
    return [
        line
        for file in FILES
        for line in load_sentences(data_dir / file, ["1"] if file in FIRST_OF_EACH_LINE else None)
    ]


def train_tokenizer(lines: list[str], folder: Path) -> None:
    """A byte-level BPE of the text, saved as RoBERTa's."""
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(lines, vocab_size=VOCABULARY, min_frequency=2, special_tokens=list(SPECIAL))
    with atomic_folder(folder) as aside:
        trained.save_model(str(aside))
        saved = RobertaTokenizerFast(
            vocab=str(aside / "vocab.json"), merges=str(aside / "merges.txt"), model_max_length=POSITIONS
        )
        saved.save_pretrained(aside)


def windows(lines: list[str], tokenizer: Any) -> NDArray[np.int64]:
    """Token ids (windows, 64): the text from beginning to end, each window between ``<s>`` and ``</s>``."""
    pieces: list[int] = []
    for start in range(0, len(lines), 10_000):
        for ids in tokenizer(lines[start : start + 10_000], add_special_tokens=False)["input_ids"]:
            pieces += [*ids, tokenizer.sep_token_id]
    inside = WINDOW - 2
    rows = np.array(pieces[: len(pieces) // inside * inside], dtype=np.int64).reshape(-1, inside)
    return np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (tokenizer.cls_token_id, tokenizer.sep_token_id)))


def batches(rows: NDArray[np.int64], first: int, last: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """The batches of the steps from ``first`` to ``last``; a pass takes the windows in an order of its own."""
    each = len(rows) // BATCH
    for step in range(first, last):
        number, place = divmod(step, each)
        if place == 0 or step == first:
            order = np.random.default_rng([seed, number]).permutation(len(rows))
        yield rows[order[place * BATCH : (place + 1) * BATCH]]


def masked(ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The batch as the model sees it, and which of its pieces are to be told: 80 % masked, 10 % replaced, 10 % kept."""
    chosen = (torch.rand(ids.shape, generator=generator) < MASKED) & (ids >= len(SPECIAL))
    how = torch.rand(ids.shape, generator=generator)
    seen = ids.masked_fill(chosen & (how < 0.8), SPECIAL.index("<mask>"))
    others = torch.randint(len(SPECIAL), VOCABULARY, ids.shape, generator=generator)
    return torch.where(chosen & (how >= 0.9), others, seen), chosen


def rate(step: int, steps: int) -> float:
    """Learning rate of a step."""
    return PEAK * min(1.0, (step + 1) / WARMUP, (steps - step) / (steps * FALLING))


def new_model(seed: int) -> RobertaForMaskedLM:
    """The model as it begins, without dropout."""
    torch.manual_seed(seed)
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=POSITIONS + 2,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return RobertaForMaskedLM(config)


class Training:
    """A model in training, its checkpoint, and how long it took."""

    def __init__(self, checkpoint: Path, seed: int, precision: torch.dtype, threads: int) -> None:
        self.model = new_model(seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self.step, self.seconds, self.losses = 0, 0.0, []
        self._seed, self._precision, self._checkpoint = seed, precision, checkpoint
        self._threads, self._pool = threads, ThreadPoolExecutor(threads)
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds, self.losses = state["step"], state["seconds"], state["losses"]
            logger.info("Goes on from step %d.", self.step)

    def save(self) -> None:
        """Write a checkpoint."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        with atomic_file(self._checkpoint) as path:
            torch.save(state | {"step": self.step, "seconds": self.seconds, "losses": self.losses}, path)

    def run(self, rows: NDArray[np.int64], steps: int) -> None:
        """Train to the end."""
        last, saved = time.monotonic(), time.monotonic()
        for batch in batches(rows, self.step, steps, self._seed):
            self.losses.append(self.learn(torch.from_numpy(batch), rate(self.step, steps)))
            self.step += 1
            now = time.monotonic()
            self.seconds, last = self.seconds + now - last, now
            if self.step % 25 == 0:
                left = self.seconds / self.step * (steps - self.step) / 60
                logger.info(
                    "step %d of %d, cross-entropy %.3f, %.2f s a step, %.0f min left",
                    self.step,
                    steps,
                    np.mean(self.losses[-25:]),
                    self.seconds / self.step,
                    left,
                )
            if now - saved > SAVED_EVERY:
                self.save()
                saved = now
        self.save()

    def learn(self, ids: Tensor, learning_rate: float) -> float:
        """One step; its cross-entropy."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.step)
        seen, chosen = masked(ids, generator)
        parts = [part.chunk(self._threads) for part in (ids, seen, chosen)]
        found = list(self._pool.map(lambda part: self._gradients(*part, int(chosen.sum())), zip(*parts, strict=True)))
        for parameter, *gradients in zip(self.model.parameters(), *(gradients for _, gradients in found), strict=True):
            parameter.grad = torch.stack(gradients).sum(0)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return sum(loss for loss, _ in found)

    def _gradients(self, ids: Tensor, seen: Tensor, chosen: Tensor, n_chosen: int) -> tuple[float, tuple[Tensor, ...]]:
        """What a part of a batch adds to the loss, and its gradients."""
        with torch.autocast("cpu", self._precision, self._precision != torch.float32, cache_enabled=False):
            hidden = self.model.roberta(seen).last_hidden_state
            logits = self.model.lm_head(hidden[chosen])
        loss = torch.nn.functional.cross_entropy(logits.float(), ids[chosen], reduction="sum") / n_chosen
        return loss.item(), torch.autograd.grad(loss, list(self.model.parameters()))


def processor() -> str:
    """Its name, as Linux has it."""
    return cpu_facts().get("model name", "a processor")


def write_model(training: Training, tokenizer: Path, folder: Path) -> None:
    """The model in half precision, with dropout in its config, and its tokenizer."""
    model = deepcopy(training.model).half()
    model.config.update({"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
    own = RobertaTokenizerFast.from_pretrained(tokenizer)
    mask = AddedToken("<mask>", lstrip=True, special=True)  # as RoBERTa's: the space before it is a part of it
    with atomic_folder(folder) as aside:
        model.save_pretrained(aside)
        files = {"vocab": str(tokenizer / "vocab.json"), "merges": str(tokenizer / "merges.txt")}
        RobertaTokenizerFast(**files, mask_token=mask, model_max_length=own.model_max_length).save_pretrained(aside)


def told(folder: Path, sentence: str = "He opened the <mask> and went into the house.") -> str:
    """The five words that the model puts in the place of a mask."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = RobertaForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    given = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad():
        logits = model(**given).logits[given["input_ids"] == tokenizer.mask_token_id][0]
    return f'"{sentence}" -> {", ".join(tokenizer.decode([one]).strip() for one in logits.topk(5).indices.tolist())}'


def scores(folder: Path, data_dir: Path, cache: Path) -> list[str]:
    """Raw and whitened scores of poolings on ``tuning``, transductive, and the mean cosine; a table."""
    material = Material(data_dir, cache, ["tuning"])
    rows = ["| pooling | mean cosine | raw | whitened |", "| --- | --- | --- | --- |"]
    poolings = ["mean", "first-last-avg", *(f"mean({layer})" for layer in range(5))]
    for pooling, x in TransformerEncoder(folder, device="cpu").encode_poolings(material.sentences, poolings).items():
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        cosine = (np.square(unit.sum(0, dtype=np.float64)).sum() - len(unit)) / (len(unit) * (len(unit) - 1))
        whitened = applied(CLOSED_FORMS["whitening"](Moments.of(x)), x)
        raw, after = (float(np.mean(material.sts(vectors))) for vectors in (x, whitened))
        rows.append(f"| `{pooling}` | {cosine:.2f} | {raw:.1f} | {after:.1f} |")
    return rows


def write_readme(training: Training, steps: int, options: argparse.Namespace, windows_in_all: int) -> None:
    """What it is, and what was measured."""
    pieces, minutes = steps * BATCH * WINDOW, training.seconds / 60
    lines = [
        "# A small RoBERTa",
        "",
        "Trained from scratch by `benchmarks/roberta.py` on masked words alone, never on pairs of sentences: 4 layers,",
        f"256 wide, 4 heads, {VOCABULARY:,} pieces of byte-level BPE with case, {POSITIONS} positions, float16 (open",
        "with `dtype=torch.float32`).",
        "",
        f"Training: {windows_in_all:,} windows of {WINDOW} pieces, {100 * MASKED:.0f} % masked; {steps:,} steps",
        f"of {BATCH} ({pieces / 1e6:.1f} M pieces, {steps * BATCH / windows_in_all:.2f} passes), AdamW, peak {PEAK:g},",
        f"{options.precision}, no dropout (the config says 0.1), {minutes:.0f} min on {options.threads} threads of",
        f"{processor()}; seed {options.seed}. Masked cross-entropy of the last 100 steps:",
        f"{np.mean(training.losses[-100:]):.2f}. {told(options.output)}",
        "",
        "`tuning`, Spearman x 100, mean of its sub-sets, fitted on its own sentences:",
        "",
        *scores(options.output, options.data_dir, options.cache),
    ]
    write_text(options.output / "README.md", "\n".join(lines) + "\n")


def main() -> None:
    """Train, unless that is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "bertflow-material")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)  # a thread takes a part of each batch: they wait for one another once a step
    work = options.output.with_name(options.output.name + ".training")
    lines = read_lines(options.data_dir)
    if not (work / "tokenizer").exists():
        train_tokenizer(lines, work / "tokenizer")
    if not (work / "windows.npy").exists():
        tokenizer = RobertaTokenizerFast.from_pretrained(work / "tokenizer")
        with atomic_file(work / "windows.npy") as path, path.open("wb") as file:
            np.save(file, windows(lines, tokenizer))
    rows = np.load(work / "windows.npy")
    logger.info("%d lines, %d windows, %d steps a pass", len(lines), len(rows), len(rows) // BATCH)
    training = Training(work / "checkpoint.pt", options.seed, getattr(torch, options.precision), options.threads)
    training.run(rows, options.steps)
    write_model(training, work / "tokenizer", options.output)
    write_readme(training, options.steps, options, len(rows))


if __name__ == "__main__":
    main()
