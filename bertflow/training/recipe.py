"""What a fit is asked for: recipes, and presets.

A preset is a recipe, named for what it reproduces, or for its purpose, with a version.

``paper-tf`` is what the released code of BERT-flow does, ``paper-text`` what the paper says. ``similarity-2``,
``search-2`` and ``both-2`` are what we recommend for each purpose; ``default`` means ``similarity-2``. Each deviation
between them is a field that says what the released code and the paper have. Sources, unless another is named:

    released   bohanli/BERT-flow@7fa8f6d: run_siamese.py, optimization_bert_flow.py, scripts/train_siamese.sh
    paper      Li et al. 2020, arXiv:2011.05864
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from bertflow.errors import UsageError
from bertflow.flow import GlowConfig
from bertflow.records import require_fields
from bertflow.registry import lookup

LEAST: Mapping[str, float] = {
    **dict.fromkeys(("n_components", "batch_size", "unit"), 1),
    **dict.fromkeys(("epochs", "steps", "warmup_steps", "learning_rate", "linear_rate_share"), 0),
    **dict.fromkeys(("weight_decay", "clip_norm", "tail"), 0),
}
"""The least values of a recipe."""


DEFAULT = "default"
"""What stands for the present recipe for similarity."""
PURPOSES: Mapping[str, str] = {"similarity": "similarity-2", "search": "search-2", "all": "both-2"}
"""What embeddings are for -> the preset for that."""


@dataclass(frozen=True)
class Recipe:
    """How a flow is built and trained, with the values of the code and the paper."""

    preset: str = "default"
    """The preset that the other fields depart from: similarity-2 (or default), search-2, both-2, paper-tf,
    paper-tf-nli, paper-text or paper-text-nli."""
    glow: GlowConfig = field(default_factory=GlowConfig)
    """Shape and start of the flow."""
    start: Literal["whitening", "none"] = "whitening"
    """What comes before the flow: whitening without null directions, or nothing. Released and paper: none."""
    n_components: int | Literal["auto", "all"] = "auto"
    """Number of directions that the embedding keeps, largest variance first; "all" that are not null; or "auto": all of
    a steep spectrum, and of one that is spread what flow.tail says. Released and paper: all, null directions
    included."""
    tail: float = 0.0
    """Weight of the directions after the first quarter, with "auto" on a spread spectrum. 0 cuts them off, as for
    similarity, and does not change embeddings that look calibrated already. Above 0, the first quarter and the rest
    become two bands of unit length, and this is the weight of the cosine of the second: 1 for search, 0.5 for both.
    Released and paper: all directions are kept."""
    optimizer: Literal["adam", "released-adamw"] = "adam"
    """Optimizer. Released: AdamW without bias correction, eps 1e-6, decay on all variables of the flow. Paper: Adam."""
    learning_rate: float = 1e-3
    """Learning rate. Released (README) and paper: 1e-3 on the target text, 2e-5 on NLI."""
    linear_rate_share: float = 0.1
    """Learning rate of learned linear maps, as a share of the other; the full rate destroys a whitened start."""
    weight_decay: float = 0.0
    """Weight decay. Released: 0.01, also on ActNorms, since its list of names to leave out matches none of theirs."""
    warmup_steps: int = 200
    """Steps until the full learning rate, at most a quarter of all steps. Released: none."""
    decay: Literal["constant", "cosine"] = "cosine"
    """Course of the learning rate after the warm-up. Released: constant."""
    clip_norm: float = 0.0
    """Largest norm of the gradient; 0 for no limit. Released: 1.0, over the flow's variables alone."""
    batch_size: int = 256
    """Rows of one step, over all ranks; rows that do not fill a last batch wait for another epoch. Released: 64."""
    epochs: float = 4.0
    """Passes over the text. Released (README) and paper: 1 on the target text; paper: 0.15 on NLI."""
    steps: int = 375
    """Maximum number of steps; 0 for no limit, also where only the number of epochs is given. More steps raise the
    likelihood and lower Spearman. Released and paper: no limit."""
    unit: int = 1
    """Number of neighboring rows that stay in one batch: 2 for sentence pairs, as released."""
    two_sided: bool = False
    """Whether the loss is the sum of both sides' means in bits per dimension (released), not the mean in nats. It
    scales the gradient, and so changes the meaning of the clip norm."""
    dropout: bool = False
    """Whether to encode on the fly, with the encoder's dropout on. Released: yes, only the weights are frozen. The
    paper does not say."""
    pooling: str | None = None
    """Pooling, if none is given for the encoder; by default the encoder's own. Released: avg-last-2, whose loop reads
    the first and the last block. Paper: the mean of the last two layers."""
    max_length: int | None = None
    """Tokens a sentence, if not given for the encoder; by default the encoder's own. Released: 64."""
    held_out: float = 0.05
    """Share of the rows that are held out to judge the fit. Released and paper: none."""
    ema: float = 0.0
    """Decay of an exponential average of the weights, which replaces them; 0 for none. Released: none."""
    keep: Literal["best", "last"] = "best"
    """Weights to keep: those with the fewest held-out bits, the start included, or the last. Released: last."""

    def __post_init__(self) -> None:
        if self.preset == DEFAULT:  # what is recorded has a version
            object.__setattr__(self, "preset", PURPOSES["similarity"])
        require_fields(self, "flow", LEAST)
        if not 0 <= self.ema < 1:
            raise UsageError(f"flow.ema is a decay from 0 (no average) to below 1, got {self.ema}.")
        if self.batch_size % self.unit:
            raise UsageError(f"flow.batch_size must be a multiple of flow.unit ({self.unit}), got {self.batch_size}.")
        if self.start == "none" and not isinstance(self.n_components, str):
            raise UsageError(
                f"To keep {self.n_components} directions, flow.start must be whitening, which sorts them by size; the "
                f"preset {self.preset!r} has {self.start}. Set flow.start to whitening, or leave n_components out."
            )


RELEASED_GLOW = GlowConfig(
    levels=3,
    depth=3,
    hidden=32,
    coupling="additive",
    permutation="reversal",
    network="conv-stack",
    actnorm_factor=3.0,
    initialization="glorot",
    restore_order=False,
    factored_first=True,
)

PAPER_TF = Recipe(
    preset="paper-tf",
    glow=RELEASED_GLOW,
    start="none",
    optimizer="released-adamw",
    learning_rate=1e-3,
    linear_rate_share=1.0,
    weight_decay=0.01,
    warmup_steps=0,
    decay="constant",
    clip_norm=1.0,
    batch_size=64,
    epochs=1.0,
    steps=0,
    unit=2,
    two_sided=True,
    dropout=True,
    pooling="first-last-avg",
    max_length=64,
    held_out=0.0,
    keep="last",
)
PAPER_TEXT = replace(
    PAPER_TF,
    preset="paper-text",
    glow=replace(RELEASED_GLOW, levels=2, permutation="random", initialization="data"),
    optimizer="adam",
    weight_decay=0.0,
    clip_norm=0.0,
    two_sided=False,
    dropout=False,
    pooling="last-2-avg",
)

PRESETS: Mapping[str, Recipe] = {
    "similarity-2": Recipe(),
    "search-2": Recipe(preset="search-2", tail=1.0),
    "both-2": Recipe(preset="both-2", tail=0.5),
    "paper-tf": PAPER_TF,
    "paper-tf-nli": replace(PAPER_TF, preset="paper-tf-nli", learning_rate=2e-5, epochs=0.15),
    "paper-text": PAPER_TEXT,
    "paper-text-nli": replace(PAPER_TEXT, preset="paper-text-nli", learning_rate=2e-5, epochs=0.15),
}
"""Recipes by name. "-nli" is the schedule for NLI text, the others are for the target text. A row that was recorded
never changes: a better one gets a version of its own."""


def preset_for(preset: str | None, purpose: str | None = None) -> str:
    """The name of the preset for a purpose, or the one that is named.

    Raises:
        UnknownNameError: If there is no such preset or purpose.
        UsageError: If both are named, and the preset is not the one for the purpose.
    """
    named = {DEFAULT: PURPOSES["similarity"], **{name: name for name in PRESETS}}
    wanted = lookup("preset", named, preset or DEFAULT)
    if purpose is None:
        return wanted
    row = lookup("purpose", PURPOSES, purpose)
    if preset not in (None, DEFAULT, row):
        raise UsageError(
            f"The purpose {purpose} uses the preset {row}, but the preset {preset} is given. Leave one of them out."
        )
    return row


def recipe_changes(recipe: Recipe) -> dict[str, Any]:
    """The fields in which a recipe departs from its preset, ready for JSON: what ``resolve`` takes as changes."""
    row, preset = asdict(recipe), asdict(lookup("preset", PRESETS, recipe.preset))
    changes = {name: value for name, value in row.items() if value != preset[name]}
    if "epochs" in changes and not recipe.steps:
        changes.pop("steps", None)  # follows from the other
    if "glow" in changes:
        changes["glow"] = {name: value for name, value in row["glow"].items() if value != preset["glow"][name]}
    return changes


def resolve(preset: str | Recipe, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of that name, with some fields changed; fields of the flow itself as ``{"glow": {"hidden": 64}}``.

    Raises:
        UnknownNameError: If there is no such preset or field.
        UsageError: If a value is out of range.
    """
    recipe = preset if isinstance(preset, Recipe) else PRESETS[preset_for(preset)]
    changes = dict(changes or {})
    for name in changes:
        lookup("option of a recipe", Recipe.__dataclass_fields__, name)
    glow = changes.get("glow")
    if isinstance(glow, Mapping):
        for name in glow:
            lookup("option of a flow", GlowConfig.__dataclass_fields__, name)
        changes["glow"] = replace(recipe.glow, **glow)
    if "epochs" in changes:
        changes.setdefault("steps", 0)
    return replace(recipe, **changes)
