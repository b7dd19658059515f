"""Modules that sentence-transformers loads by their path, where none of its own computes what is needed.

    bertflow.export.module.LayerPooling     token embeddings, all layers -> sentence embedding, any of our poolings
    bertflow.export.module.Calibration      sentence embedding -> calibrated sentence embedding, any of our maps

sentence-transformers casts every module to the dtype of the transformer. In half precision a calibrator turns rounding
into scores, so these modules follow only moves to a device: both stay and work in float32.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import torch
from torch import Tensor

from bertflow.encoder.architecture import switch_off
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError, needs
from bertflow.export.parts import FORMAT, PoolingHead
from bertflow.maps import empty_map, of_role
from bertflow.records import other_version
from bertflow.registry import own_code

with needs("sentence-transformers", "st"):
    from sentence_transformers.base.modules import Module

HALF = (torch.float16, torch.bfloat16)
WHERE = ("token", "cache_folder", "revision", "local_files_only")
"""Options of ``load`` that say where the files are."""


class AbstractExactModule(Module):
    """A module of sentence-transformers that stays float32 and is saved as a config and safetensors."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = dict(config)

    def get_config_dict(self) -> dict[str, Any]:
        """What ``save`` writes as its config."""
        return self.config

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(lambda tensor: tensor.to(device=fn(tensor).device), recurse)
        return self

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Give ``sentence_embedding``, (batch, dim), float32; tensors that were cast without ``_apply`` are refused."""
        half = [name for name, tensor in self.state_dict().items() if tensor.dtype in HALF]
        if half:
            raise DataError(
                f"{type(self).__name__} works in float32, but {half[0]} was cast to half precision, as by device_map. "
                "Load the model without device_map, or in float32."
            )
        features["sentence_embedding"] = self._embedding(features, **options)
        return features

    @abstractmethod
    def _embedding(self, features: Mapping[str, Any], **options: Any) -> Tensor: ...

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write config and weights into a folder."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Self:  # type: ignore[override]
        """Read what ``save`` wrote, from a folder or the hub; options that do not say where are ignored."""
        where = {"subfolder": subfolder, **{name: options[name] for name in WHERE if name in options}}
        config = cls.load_config(model_name_or_path, **where)
        if config.get("format") != FORMAT:
            place = f"{model_name_or_path}/{subfolder}"
            raise DataError(other_version(place, config.get("format"), FORMAT, "Export the encoder again."))
        return cast(Self, cls.load_torch_weights(model_name_or_path, model=cls(config), **where))


class LayerPooling(AbstractExactModule):
    """Any of our poolings, on the output of sentence-transformers' Transformer.

    Its config has the fields of ``Pooling``, whose ``layers`` are indices from 0, and

        embedding_dimension     width of an embedding
        depth                   index of the transformer's last layer
        before, after           number of special tokens before the text, and after it
        vocabulary              number of token ids that have a weight; 0 where tokens are not weighted
        final_norm              the transformer's norm that must not act, since later blocks were left out
        mask_at                 place of the template's mask, as in ``TokenViews``; null without a template
        lengths                 number of lengths of a sentence, from 0, of which the template's own part is known
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        pooling = Pooling(tuple(config["layers"]), config["join"], config["tokens"])
        weights = torch.ones(config["vocabulary"]) if config["vocabulary"] else None
        each = config["embedding_dimension"] // pooling.width(1)
        bias = torch.zeros(len(pooling.layers), config["lengths"], each) if config["lengths"] else None
        self.head = PoolingHead(pooling, (config["before"], config["after"]), weights, config["mask_at"], bias)

    def on_model_ready(self, model: Any) -> None:
        """Called by sentence-transformers when the model is complete."""
        if self.config["final_norm"] is not None:
            switch_off(model[0].model, self.config["final_norm"])

    def _embedding(self, features: Mapping[str, Any], **_: Any) -> Tensor:
        depth = self.config["depth"]
        inner = [layer for layer in self.config["layers"] if layer < depth]
        if inner and "all_layer_embeddings" not in features:
            raise DataError(
                f"LayerPooling reads the layers {inner}, but the transformer gives only its last one. "
                "Set output_hidden_states to true in its config.json, as bertflow wrote it."
            )
        read = {layer: features["all_layer_embeddings"][layer] for layer in inner}
        read[depth] = features["token_embeddings"]
        return cast(Tensor, self.head(read, features["input_ids"], features["attention_mask"]))

    def get_embedding_dimension(self) -> int:
        """Width of an embedding."""
        return int(self.config["embedding_dimension"])


class Calibration(AbstractExactModule):
    """A fitted map, row by row: a flow, or a closed form after ``LayerPooling``.

    Its config has ``map``, class and shape, as ``{"class": "FlowMap", **spec}``, and the user's own modules that it
    needs as ``imports``. Where the map moves queries by a mean of their own, the task of sentence-transformers says
    what is embedded; without one the ``role`` of the config does.
    """

    forward_kwargs = {"task"}  # noqa: RUF012 - as its base has it

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        with own_code("The exported map", config.get("imports", [])):
            self.calibrator = empty_map(config["map"]).float().eval()

    def _embedding(self, features: Mapping[str, Any], task: str | None = None, **_: Any) -> Tensor:
        query = (task or self.config["role"]) == "query"
        return of_role(self.calibrator, query)(features["sentence_embedding"].float())

    def get_embedding_dimension(self) -> int:
        """Width of an embedding."""
        return int(self.calibrator.dim_out)
