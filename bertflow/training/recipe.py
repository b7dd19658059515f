"""What a fit is asked for and what it reports: recipes in, a record out.

A preset is a recipe, named for what it reproduces.

``paper-tf`` is what the released code of BERT-flow does, ``paper-text`` what the paper says, ``default`` what we
recommend. Each deviation between them is a field that says what the released code and the paper have. Sources, unless
another is named:

    released   bohanli/BERT-flow@7fa8f6d: run_siamese.py, optimization_bert_flow.py, scripts/train_siamese.sh
    paper      Li et al. 2020, arXiv:2011.05864
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import UsageError
from bertflow.flow import GlowConfig
from bertflow.records import require_types
from bertflow.registry import lookup


def require_least(recipe: object, group: str, least: Mapping[str, float]) -> None:
    """Refuse a recipe with a number below its least value.

    Raises:
        UsageError: For the first one, as ``group.name``.
    """
    for name, bound in least.items():
        if getattr(recipe, name) < bound:
            raise UsageError(f"{group}.{name} must be at least {bound}, got {getattr(recipe, name)}.")


LEAST: Mapping[str, float] = {
    **dict.fromkeys(("batch_size", "unit"), 1),
    **dict.fromkeys(("epochs", "steps", "warmup_steps", "learning_rate", "linear_rate_share"), 0),
    **dict.fromkeys(("weight_decay", "clip_norm"), 0),
}
"""The least values of a recipe."""


@dataclass(frozen=True)
class Recipe:
    """How a flow is built and trained. Each field also says what the released code and the paper have."""

    preset: str = "default"
    """The preset that the other fields depart from: default, paper-tf, paper-tf-nli, paper-text or paper-text-nli."""
    glow: GlowConfig = field(default_factory=GlowConfig)
    """Shape and start of the flow."""
    start: Literal["whitening", "none"] = "whitening"
    """What comes before the flow: whitening without null directions, or nothing. Released and paper: none."""
    n_components: int | Literal["auto", "all"] = "auto"
    """Number of directions that the embedding keeps, largest variance first; "all" that are not null, which is better
    for search; or "auto": all of a steep spectrum, 96 of a spread one, and no change where the embeddings look
    calibrated already. Released and paper: all, null directions included."""
    optimizer: Literal["adam", "released-adamw"] = "adam"
    """Optimizer. Released: AdamW without bias correction, eps 1e-6, decay on all variables of the flow. Paper: Adam."""
    learning_rate: float = 1e-3
    """Learning rate. Released (README) and paper: 1e-3 on the target text, 2e-5 on NLI."""
    linear_rate_share: float = 0.1
    """Learning rate of learned linear maps, as a share of the other; the full rate destroys a whitened start."""
    weight_decay: float = 0.0
    """Weight decay. Released: 0.01, also on ActNorms, since the names to be left out match none of theirs."""
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
        require_types(self, "flow")
        require_least(self, "flow", LEAST)
        if not 0 <= self.ema < 1:
            raise UsageError(f"flow.ema is a decay from 0 (no average) to below 1, got {self.ema}.")
        if self.batch_size % self.unit:
            raise UsageError(f"flow.batch_size must be a multiple of flow.unit ({self.unit}), got {self.batch_size}.")
        if not isinstance(self.n_components, str):
            require_least(self, "flow", {"n_components": 1})
        if self.start == "none" and not isinstance(self.n_components, str):
            raise UsageError(
                f"Keeping {self.n_components} directions needs flow.start whitening, which says which are the largest; "
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
    "default": Recipe(),
    "paper-tf": PAPER_TF,
    "paper-tf-nli": replace(PAPER_TF, preset="paper-tf-nli", learning_rate=2e-5, epochs=0.15),
    "paper-text": PAPER_TEXT,
    "paper-text-nli": replace(PAPER_TEXT, preset="paper-text-nli", learning_rate=2e-5, epochs=0.15),
}
"""Recipes by name. "-nli" is the schedule for NLI text, the others are for the target text."""


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
    recipe = preset if isinstance(preset, Recipe) else lookup("preset", PRESETS, preset)
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


@dataclass(frozen=True)
class Gaussianity:
    """Departures of n rows of z from N(0, I); every number is 0 for a perfect fit and infinitely many rows.

    Attributes:
        n: Number of rows.
        norm_ks: Largest gap between the distribution of |z|^2 and chi-square, in [0, 1] (Kolmogorov-Smirnov).
        mean: Root mean square of the means of the dimensions.
        variance: Root mean square of their variances less 1.
        skewness: Root mean square of their skewnesses.
        kurtosis: Root mean square of their excess kurtoses.
        covariance: Root mean square of the covariances of different dimensions.
        sampling: Expected ``mean`` and ``covariance`` for n rows of N(0, I): 1 / sqrt(n).
    """

    n: int
    norm_ks: float
    mean: float
    variance: float
    skewness: float
    kurtosis: float
    covariance: float
    sampling: float


def gaussianity(z: NDArray[np.floating]) -> Gaussianity:
    """Measure the rows z (n, dim), n >= 2."""
    from scipy import stats  # takes half a second

    z = np.asarray(z, dtype=np.float64)
    n, dim = z.shape
    covariance = np.cov(z, rowvar=False, bias=True).reshape(dim, dim)
    standard = (z - z.mean(0)) / np.sqrt(np.diag(covariance).clip(min=np.finfo(np.float64).tiny))
    return Gaussianity(
        n=n,
        norm_ks=float(stats.kstest(np.square(z).sum(1), stats.chi2(dim).cdf).statistic),
        mean=_rms(z.mean(0)),
        variance=_rms(np.diag(covariance) - 1),
        skewness=_rms((standard**3).mean(0)),
        kurtosis=_rms((standard**4).mean(0) - 3),
        covariance=_rms(covariance[~np.eye(dim, dtype=bool)]),
        sampling=float(1 / np.sqrt(n)),
    )


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0


@dataclass(frozen=True)
class FitRecord:
    """How a flow was fitted, and how well. Bits are per dimension of the density; lower is better.

    Attributes:
        preset: Row of ``PRESETS``.
        seed: Random seed for the held-out rows, the first weights and the order of the rows.
        n_train: Rows trained on.
        n_held_out: Rows that judged the fit.
        dim_in: Width of the embeddings.
        rank: Number of directions that are not null.
        n_null: Number of null directions.
        dim_out: Directions that the calibrated embedding keeps.
        steps: Steps of the optimizer.
        seconds: Duration of the training.
        kept: The chosen state: "start", or "step 96".
        left_alone: Why the embeddings are left as they are, in words; None where they are not. Then the bits and
            ``gaussianity`` are those of the start, the Gaussian.
        interrupted: Whether the fit was stopped before its end.
        dropout: Whether the encoder was in the loop, with its dropout on.
        train_bits: Bits of (a sample of) the training rows.
        train_bits_gaussian: The same under the Gaussian of full covariance; None where the flow keeps null directions,
            since densities on different dimensions do not compare.
        held_out_bits: Bits of the held-out rows; None where there are none.
        held_out_bits_gaussian: The same under the Gaussian.
        gaussianity: Of z, on the held-out rows; on the training rows where there are none.
    """

    preset: str
    seed: int
    n_train: int
    n_held_out: int
    dim_in: int
    rank: int
    n_null: int
    dim_out: int
    steps: int
    seconds: float
    kept: str
    left_alone: str | None
    interrupted: bool
    dropout: bool
    train_bits: float
    train_bits_gaussian: float | None
    held_out_bits: float | None
    held_out_bits_gaussian: float | None
    gaussianity: Gaussianity

    def summary(self) -> str:
        """One line."""
        if self.left_alone:
            return self.left_alone
        name, _, flow, normal = self._judged()[0 if self.held_out_bits is None else 1]
        return (
            f"{name}: {flow} bits per dimension, full-covariance Gaussian {normal}; {self.steps:,} steps in "
            f"{self.seconds:.0f} s, kept: {self.kept}"
        )

    def to_markdown(self) -> str:
        """A short report."""
        if self.left_alone:
            return f"# Fit of a flow\n\nPreset `{self.preset}`, {self.n_train:,} rows, {self.left_alone}.\n"
        table = "\n".join(f"| {' | '.join(row)} |" for row in self._judged())
        z = self.gaussianity
        return f"""# Fit of a flow

Preset `{self.preset}`, seed {self.seed}: {self.steps:,} steps in {self.seconds:.0f} s; kept: {self.kept}\
{" (interrupted)" if self.interrupted else ""}.
{self.dim_in} dimensions, {self.n_null} of them null; the calibrated embedding has {self.dim_out}.

| rows | n | bits per dimension, flow | full-covariance Gaussian |
|---|---|---|---|
{table}

Departure of z from N(0, I) on {z.n:,} rows; 0 is none, and chance alone gives the first two about {z.sampling:.3f}:

| means | covariances | variances | skewness | excess kurtosis | norms (Kolmogorov-Smirnov) |
|---|---|---|---|---|---|
| {z.mean:.3f} | {z.covariance:.3f} | {z.variance:.3f} | {z.skewness:.3f} | {z.kurtosis:.3f} | {z.norm_ks:.3f} |

A better density is not a better similarity: held-out bits do not rank calibrators by Spearman. Evaluate.
"""

    def _judged(self) -> list[tuple[str, ...]]:
        """Name and number of the training rows and of the held-out rows, and their bits by flow and by Gaussian."""
        rows = (
            ("training", self.n_train, self.train_bits, self.train_bits_gaussian),
            ("held out", self.n_held_out, self.held_out_bits, self.held_out_bits_gaussian),
        )
        return [(name, f"{n:,}", *("-" if each is None else f"{each:.4f}" for each in bits)) for name, n, *bits in rows]
