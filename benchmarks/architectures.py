"""Which architectures bertflow reads, and how right: every model type of transformers' ``AutoModel``, small and random.

    python benchmarks/architectures.py            # tries all, writes architectures.json and ../docs/encoders.md
    python benchmarks/architectures.py fnet t5    # tries these, and prints
    python benchmarks/architectures.py page       # writes the page from architectures.json

A model of four blocks and 48 dimensions is made of each type, with random weights and the words of one small tokenizer.
The second voice is transformers' own whole model on one sentence alone, without padding: ``last_hidden_state`` and
``output_hidden_states``. An architecture is right if the poolings ``mean``, ``mean(1,2)``, ``cls`` and ``last-token``
agree with it to 1e-5 of a vector's length, each sentence alone and all in one call, at several lengths up to the
longest; and if saved and opened again its embeddings are the same.
"""

import inspect
import json
import logging
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from bertflow.encoder.architecture import TOLERANCES, model_class
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.files import write_json, write_text

HERE = Path(__file__).parent
RECORD = HERE / "architectures.json"
PAGE = HERE.parent / "docs" / "encoders.md"
BLOCKS, LONGEST, LARGEST, TOLERANCE = 4, 64, 8_000_000, 1e-5
WORDS = ["the", "a", "dog", "cat", "bird", "sings", "eats", "sleeps", "in", "garden", "big", "red", "and", "small"]
SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
SENTENCES = (
    "the dog sings",
    "a cat",
    "a dog eats in the garden",
    "the big red bird eats in the garden and the small cat sleeps in the garden",
    "",
    "bird and dog and cat " * 20,
)
"""Of 2 to 122 tokens, special ones included."""
POOLINGS = {"mean": ("mean", "cls", "last-token"), "mean(1,2)": ("mean(1,2)",)}
"""The pooling that an encoder is opened with -> those that are read from it."""

SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "dim", "n_embd", "emb_dim", "embedding_size", "word_embed_proj_dim"), 48
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), BLOCKS),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "d_inner", "ffn_dim"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "vocab_size", "max_seq_len"), LONGEST),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 2),
    **{"head_dim": 12, "d_kv": 12, "rotary_dim": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"type_vocab_size": 2, "moe_intermediate_size": 16, "num_experts_per_tok": 1, "coordinate_size": 8},
    **{"qk_rope_head_dim": 12, "qk_nope_head_dim": 12, "v_head_dim": 12, "q_lora_rank": 16, "kv_lora_rank": 16},
    **{"qk_head_dim": 24, "index_head_dim": 12, "index_n_heads": 2, "n_group": 1, "topk_group": 1},
    **{"shape_size": 8, "conv_kernel_size": 3, "state_size": 8, "mamba_d_state": 8},
}
"""Given where a config has the field."""


THREE_AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2]}
OVERRIDES: dict[str, dict[str, Any]] = {
    "funnel": {"block_sizes": [2, 2]},
    "gpt_neo": {"attention_types": [[["global", "local"], BLOCKS // 2]]},
    "luke": {"entity_vocab_size": 20},
    "reformer": {"axial_pos_embds_dim": (16, 32), "axial_pos_shape": (8, 8)},
    "roc_bert": {"pronunciation_vocab_size": LONGEST, "shape_vocab_size": LONGEST},
    "stablelm": {"partial_rotary_factor": 0.5},
    **{name: {"mamba_n_heads": 4} for name in ("bamba", "granitemoehybrid")},
    "xmod": {"default_language": "en_XX"},
    **{name: {"rope_parameters": THREE_AXES} for name in ("glm4v_text", "glm_image_text", "glm_ocr_text")},
    **{name: {"rope_parameters": THREE_AXES} for name in ("qwen2_vl_text", "qwen2_5_vl_text")},
    "glm4v_moe_text": {"rope_parameters": {**THREE_AXES, "mrope_section": [1, 1, 1]}},
}
"""What else some model types need to be small."""


@dataclass(frozen=True)
class Verdict:
    """What became of one model type.

    Attributes:
        name: Its ``model_type``.
        outcome: A row of ``HEADINGS``, or ``wrong``, which none may be.
        reason: Why it was refused, or could not be tried; of one that is right, what it is refused for.
        error: Largest distance from transformers' own vectors, as a share of their length.
    """

    name: str
    outcome: str
    reason: str = ""
    error: float | None = None


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of some words, with special tokens at both ends of a sentence."""
    words = Tokenizer(models.WordLevel({word: k for k, word in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    named = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    named |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)


def small_config(name: str) -> PreTrainedConfig:
    """The config of a model type, with everything in it made small that has a known name."""
    kind = CONFIG_MAPPING[name]
    default = kind()
    known = default.to_dict().keys() | default.attribute_map.keys()
    given = {field: value for field, value in SIZES.items() if field in known}
    return kind(**given | OVERRIDES.get(name, {}))


def write_model(name: str, folder: Path) -> None:
    """A small random model and a tokenizer in a folder."""
    config = small_config(name)
    kind = model_class(config, name)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in kind(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} M weights, where {LARGEST / 1e6:.0f} M are wanted at most")
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # the embedding of padding, too, which is often zero: a leak would not show
                weight.normal_(0, 0.15)
    model.save_pretrained(folder)
    write_tokenizer(folder)


class SecondVoice:
    """transformers' own model and tokenizer, run on one sentence at a time."""

    def __init__(self, folder: Path) -> None:
        config = AutoConfig.from_pretrained(folder)
        config.use_cache = False
        self.model = model_class(config, folder).from_pretrained(folder, config=config).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.takes = set(inspect.signature(self.model.forward).parameters)

    @torch.no_grad()
    def embed(self, sentence: str, length: int) -> dict[str, np.ndarray]:
        """The vectors of one sentence by each of ``POOLINGS`` that the model's layers allow."""
        inputs = self.tokenizer(
            sentence, return_tensors="pt", truncation=True, max_length=length, return_token_type_ids=False
        )
        given = {key: value for key, value in inputs.items() if key in self.takes}
        found = self.model(**given, output_hidden_states=True)
        last, layers = found.last_hidden_state[0], found.hidden_states
        vectors = {"mean": last.mean(0), "cls": last[0], "last-token": last[-1]}
        if layers is not None and len(layers) == self.model.config.num_hidden_layers + 1:
            vectors["mean(1,2)"] = (layers[1][0].mean(0) + layers[2][0].mean(0)) / 2
        return {pooling: vector.numpy() for pooling, vector in vectors.items()}

    def speaks(self) -> bool:
        """Whether the sizes fit together: if not, transformers fails as well, in the middle of a computation."""
        try:
            self.embed(SENTENCES[0], LONGEST)
        except (RuntimeError, TypeError):
            return False
        except Exception:  # it wants more than tokens
            return True
        return True


def largest_error(found: Any, wanted: Any) -> float:
    """Largest distance of a row, as a share of its length."""
    found, wanted = np.array(found), np.array(wanted)
    return float((np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)).max())


def try_architecture(name: str, folder: Path) -> Verdict:
    """Make a model of this type, embed with it, and compare."""
    try:
        model_class(CONFIG_MAPPING[name](), name)
        write_model(name, folder)
        voice = SecondVoice(folder)
    except UsageError as error:
        return Verdict(name, "refused", reason_of(error))
    except Exception as error:  # configs that want arguments, or other sizes
        return Verdict(name, "not tried", one_line(error))
    try:
        return compare(name, folder, voice)
    except Exception as error:  # what a user would see as a traceback
        return Verdict(name, "wrong", one_line(error))


def compare(name: str, folder: Path, voice: SecondVoice) -> Verdict:
    """Embed by every pooling, alone, in one call and after saving, and compare with the second voice."""
    errors, reasons = [], {}
    for own, poolings in POOLINGS.items():
        try:
            encoder = TransformerEncoder(folder, own, device="cpu")
            pads, length = encoder.stack.pads, encoder.spec.max_length
        except UsageError as error:
            reasons[own] = reason_of(error)
            continue
        wanted = [voice.embed(sentence, length) for sentence in SENTENCES]
        encoder.save(folder / own)
        saved = TransformerEncoder(folder / own, device="cpu")
        ways = [encoder.encode_poolings(SENTENCES, poolings), saved.encode_poolings(SENTENCES, poolings)]
        alone = [encoder.encode_poolings([sentence], poolings) for sentence in SENTENCES]
        ways.append({pooling: np.concatenate([one[pooling] for one in alone]) for pooling in poolings})
        errors += [largest_error(way[p], [vectors[p] for vectors in wanted]) for way in ways for p in poolings]
    if not errors:
        return Verdict(name, "refused" if voice.speaks() else "not tried", reasons["mean"])
    worst = float(np.max(errors))  # NaN stays NaN
    right = "by length" if not pads else "last layer" if reasons else "right"
    return Verdict(name, right if worst <= TOLERANCE else "wrong", "; ".join(reasons.values()), worst)


def reason_of(error: Exception) -> str:
    """Why, without the name of the model and the advice."""
    return re.sub(r"\. (Choose another|Use a pooling) .*", "", re.sub(r"^.*?(: | itself: )", "", one_line(error, 400)))


def one_line(error: Exception, most: int = 120) -> str:
    """The first line without the paths of this machine, cut to what fits into a list."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r" from '/[^']*'", "", line)[:most]


INTRODUCTION = """# Encoders

A model folder or a hub id is opened by what it is, not by its name:

```python no-run
encoder = bertflow.TransformerEncoder("google/mt5-small", "mean")
```

* Every model that transformers' `AutoModel` opens can be used if it reads text by itself and is one stack of blocks:
  BERT and its kin, and decoders such as GPT-2 or Llama (with `mean` or `last-token`; their first token sees no other).
* A BERT, RoBERTa or ELECTRA with `"is_decoder": true` in its `config.json` reads as it does in transformers:
  each token sees those before it.
* A folder of sentence-transformers brings its pooling, its prompts and its longest sentence, `max_seq_length` (without
  it, as many tokens as the model reads). Other folders are read up to 128 tokens. `max_length` sets another length.
* Of T5, mT5 and UMT5 the encoder alone is loaded. They know no longest sentence, so give `max_length` where 128 tokens
  are too few. In half precision use `bfloat16`: T5 is known to overflow in `float16`.
* sentence-t5 and GTR end in a module `Dense`, which bertflow does not run. Give the pooling yourself, which reads the
  transformer alone: `TransformerEncoder("sentence-transformers/gtr-t5-base", "mean")`.
* Layer k is `hidden_states[k]` of transformers. The last layer, -1, is its `last_hidden_state`, with the final norm of
  models that have one.
* X-MOD needs `default_language` in its `config.json`. MRA without its CUDA kernel has no attention in
  transformers, and so none here.
* Everything else is refused, in one line that says why.

## Padding

Sentences of several lengths are padded to one batch, and a mask hides the padding. Some models take no mask (FNet), or
read beyond it (ConvBERT, MobileBERT). So every model is tried when it is loaded: a row of two tokens must come out the
same alone and padded to six, up to a share of the length of a token's vector ({tolerances}).
Otherwise sentences are run in groups of one length, and a warning says so. If not even equal lengths agree, the model
is refused. An encoder that runs in groups works in every command but `export`: tools that load an export would pad.

The trial is short: it does not see what a model does at greater lengths only. It costs two short passes.

## What was tried

Every model type of transformers {version} was made small, with {blocks} blocks and random weights, and compared with
transformers' own model, run on one sentence at a time: each sentence alone, all in one call, and after saving, by the
poolings `mean`, `cls`, `last-token` and `mean(1,2)`. The largest difference was {worst:.1e} of a vector's length, where
{limit:g} was allowed. `python benchmarks/architectures.py` makes this page again.

{counts}
"""
HEADINGS = {
    "right": "Right",
    "by length": "Right, in groups of one length",
    "last layer": "Right, the last layer only",
    "refused": "Refused",
    "not tried": "Not tried",
}
"""An outcome -> its heading."""
REFUSED = 4
"""Names of refused types on the page, for each reason; architectures.json has all."""
UNTRIED = "No small model of these types could be made. They are tried on loading, as all others are."


def page(recorded: Mapping[str, Any]) -> str:
    """The page of the guide, in Markdown."""
    groups: dict[str, list[Verdict]] = {outcome: [] for outcome in HEADINGS}
    for row in recorded["verdicts"]:
        groups[row["outcome"]].append(Verdict(**row))
    worst = max(each.error for rows in groups.values() for each in rows if each.error is not None)
    tolerances = ", ".join(f"{limit:g} in {str(dtype).removeprefix('torch.')}" for dtype, limit in TOLERANCES.items())
    counts = "".join(f"\n| {HEADINGS[outcome]} | {len(rows)} |" for outcome, rows in groups.items())
    told = {"version": recorded["transformers"], "blocks": BLOCKS, "worst": worst, "limit": TOLERANCE}
    text = INTRODUCTION.format(**told, tolerances=tolerances, counts=f"| | model types |\n| --- | --- |{counts}")
    for outcome, rows in groups.items():
        text += f"\n## {HEADINGS[outcome]}\n" + (f"\n{UNTRIED}\n" if outcome == "not tried" else "")
        if outcome == "not tried":
            continue
        names: dict[str, list[str]] = {}
        for each in rows:
            names.setdefault(general(each.reason) if outcome == "refused" else "", []).append(f"`{each.name}`")
        for reason in [reason for reason, listed in names.items() if reason and len(listed) == 1]:
            names.setdefault("other reasons", []).extend(names.pop(reason))
        for reason, listed in sorted(names.items(), key=lambda group: -len(group[1])):
            said = f"**{reason[0].upper()}{reason[1:]}.** {len(listed)}, such as " if reason else ""
            shown = ", ".join(listed[:REFUSED] if reason else listed)
            text += "\n" + fill(f"{said}{shown}", 120, break_on_hyphens=False) + "\n"
    return text


def general(reason: str) -> str:
    """A reason, without what differs from model to model."""
    return re.sub(r"it has several \(.*", "its blocks are in several parts, as for text and images", reason)


def main(names: Sequence[str]) -> None:
    """Try some model types, or all; ``page`` writes the page again from what was recorded."""
    if list(names) == ["page"]:
        write_text(PAGE, page(json.loads(RECORD.read_text("utf-8"))))
        return
    warnings.simplefilter("ignore")
    logging.getLogger("bertflow").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    verdicts = []
    for name in names or MODEL_MAPPING_NAMES:
        begun = time.time()
        with tempfile.TemporaryDirectory() as folder:
            verdicts.append(try_architecture(name, Path(folder)))
        print(*asdict(verdicts[-1]).values(), f"{time.time() - begun:.1f} s", sep=" | ", flush=True)
    if not names:
        recorded = {"transformers": transformers.__version__, "verdicts": [asdict(each) for each in verdicts]}
        write_json(RECORD, recorded)
        write_text(PAGE, page(recorded))


if __name__ == "__main__":
    main(sys.argv[1:])
