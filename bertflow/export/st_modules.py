"""Which modules of sentence-transformers do what an encoder and its calibrator do.

    Transformer --> (WeightedLayerPooling) --> Pooling --> Dense            built in: loads anywhere, needs no flag
    Transformer --> LayerPooling --> Calibration                            bertflow's, by their path

Built-in ones are taken wherever they are exact:

    tokens mean, cls, last-token of one layer, or of the mean of layers     (WeightedLayerPooling,) Pooling
    max of one layer                                                        Pooling
    pooler                                                                  Pooling(cls), Dense with Tanh
    any closed form                                                         Dense with Identity

All others are ours, and so are all behind a transformer in half precision, which built-in modules would follow.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bertflow.affine import AffineMap
from bertflow.encoder.folders import ST_POOLINGS
from bertflow.errors import UsageError
from bertflow.export.parts import Parts
from bertflow.files import to_json

OURS = "bertflow.export.module."
FORMAT = 1
LINEAR_TOKENS = ("mean", "cls", "last-token")
"""Token reductions of which the mean over layers is that of the layers' mean."""
TYPES: Mapping[str, Mapping[str, str]] = {
    "legacy": {
        name: f"sentence_transformers.models.{name}"
        for name in ("Transformer", "WeightedLayerPooling", "Pooling", "Dense")
    },
    "modern": {
        "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
        "WeightedLayerPooling": (
            "sentence_transformers.sentence_transformer.modules.weighted_layer_pooling.WeightedLayerPooling"
        ),
        "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        "Dense": "sentence_transformers.base.modules.dense.Dense",
    },
}
"""A layout -> the path of each built-in class. text-embeddings-inference knows the legacy ones alone."""


@dataclass(frozen=True)
class StModule:
    """One module behind the transformer.

    Attributes:
        name: Its class.
        config: Its config.json, in each layout.
        tensors: Its model.safetensors; None where the class has none. Ours always have one, be it empty.
    """

    name: str
    config: Mapping[str, Mapping[str, Any]]
    tensors: Mapping[str, Tensor] | None = None

    @property
    def builtin(self) -> bool:
        """Whether it is sentence-transformers' own."""
        return self.name in TYPES["legacy"]

    def type(self, layout: str) -> str:
        """Its class with its path."""
        return TYPES[layout][self.name] if self.builtin else OURS + self.name

    def write(self, folder: Path, layout: str) -> None:
        """Write its folder."""
        folder.mkdir()
        # In the order given, as the library writes it: nothing here is compared by bytes.
        (folder / "config.json").write_text(json.dumps(self.config[layout], indent=2) + "\n", encoding="utf-8")
        if self.tensors is not None:
            save_file(
                {name: tensor.contiguous() for name, tensor in self.tensors.items()}, folder / "model.safetensors"
            )


def modules_of(parts: Parts) -> list[StModule]:
    """The modules behind the transformer."""
    return [*_pooling(parts), *_calibration(parts)]


def _pooling(parts: Parts) -> list[StModule]:
    pooling, single = parts.pooling, len(parts.layers) == 1
    reads_last = parts.layers == (parts.depth,)
    if parts.final_norm is None and parts.dtype == "float32":
        if pooling.tokens == "pooler":
            return [_built_in_pooling("cls", parts.dim_hidden), _pooler(parts)]
        if reads_last and pooling.tokens in ST_POOLINGS.values():
            return [_built_in_pooling(pooling.tokens, parts.dim_hidden)]
        if pooling.tokens in LINEAR_TOKENS and (single or pooling.join == "mean"):
            return [_weighted_layers(parts), _built_in_pooling(pooling.tokens, parts.dim_hidden)]
    if pooling.tokens == "pooler":
        raise UsageError(
            f"The pooling pooler is a layer of the model, which sentence-transformers has in float32 alone, and this "
            f"encoder is {parts.dtype}. Open it with dtype float32, or use the target onnx."
        )
    return [_layer_pooling(parts)]


def _built_in_pooling(tokens: str, dim: int) -> StModule:
    mode = {ours: theirs for theirs, ours in ST_POOLINGS.items()}[tokens]
    legacy = {
        "word_embedding_dimension": dim,
        "pooling_mode_cls_token": mode == "cls",
        "pooling_mode_mean_tokens": mode == "mean",
        "pooling_mode_max_tokens": mode == "max",
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": mode == "lasttoken",
        "include_prompt": True,
    }
    modern = {"embedding_dimension": dim, "pooling_mode": mode, "include_prompt": True}
    return StModule("Pooling", {"legacy": legacy, "modern": modern})


def _weighted_layers(parts: Parts) -> StModule:
    start = min(parts.layers)
    weights = torch.zeros(parts.depth + 1 - start)
    for layer in parts.layers:
        weights[layer - start] += 1
    sizes = {"layer_start": start, "num_hidden_layers": parts.depth}
    config = {
        "legacy": {"word_embedding_dimension": parts.dim_hidden, **sizes},
        "modern": {"embedding_dimension": parts.dim_hidden, **sizes},
    }
    return StModule("WeightedLayerPooling", config, {"layer_weights": weights})


def _layer_pooling(parts: Parts) -> StModule:
    head = parts.head()
    config = {
        "embedding_dimension": parts.dim_raw,
        "layers": list(parts.layers),
        "depth": parts.depth,
        "join": head.pooling.join,
        "tokens": head.pooling.tokens,
        "before": head.before,
        "after": head.after,
        "vocabulary": 0 if parts.token_weights is None else len(parts.token_weights),
        "final_norm": parts.final_norm,
        "format": FORMAT,
    }
    tensors = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    return StModule("LayerPooling", dict.fromkeys(TYPES, config), tensors)


def _pooler(parts: Parts) -> StModule:
    pooler: Any = parts.stack.model.pooler
    layer = getattr(pooler, "dense", pooler)  # ALBERT's is the linear layer itself
    return _dense(layer.weight.detach(), layer.bias.detach(), "torch.nn.modules.activation.Tanh")


def _dense(weight: Tensor, bias: Tensor, activation: str = "torch.nn.modules.linear.Identity") -> StModule:
    legacy = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": True,
        "activation_function": activation,
    }
    # The keys of later versions, which earlier ones do not read.
    name = "sentence_embedding"
    modern = {**legacy, "module_input_name": name, "module_output_name": name}
    return StModule("Dense", {"legacy": legacy, "modern": modern}, {"linear.weight": weight, "linear.bias": bias})


def _calibration(parts: Parts) -> list[StModule]:
    if parts.map is None:
        return []
    if isinstance(parts.map, AffineMap) and parts.dtype == "float32":
        # (x - shift) @ weight, written as weight^T x + bias; the product in float64, since it cancels.
        weight = parts.map.weight.double().T
        return [_dense(weight.float(), -(weight @ parts.map.shift.double()).float())]
    config = {"map": {"class": type(parts.map).__name__, **parts.map.spec()}, "format": FORMAT}
    tensors = {f"calibrator.{name}": tensor for name, tensor in parts.map.state_dict().items()}
    return [StModule("Calibration", dict.fromkeys(TYPES, json.loads(to_json(config))), tensors)]
