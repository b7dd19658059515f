"""A sentence-transformers folder, written without sentence-transformers.

    config.json  model.safetensors  tokenizer.json  ...   the transformer: the blocks that the pooling needs
    modules.json  1_Pooling/  2_Dense/                    the modules after it
    sentence_bert_config.json                             longest sentence
    config_sentence_transformers.json                     prompts, and which bertflow our own modules need
    bertflow.json  encoder/  calibrator/                  what ``bertflow.load`` opens: all but the weights again

Built-in modules load anywhere and need no flag. They are used wherever they are exact:

    tokens mean, cls, last-token of one layer, or of the mean of layers     (WeightedLayerPooling,) Pooling
    max of one layer                                                        Pooling
    pooler                                                                  Pooling(cls), Dense with Tanh
    any closed form that is affine                                          Dense with Identity
    one that was fitted on rows of unit length                              Normalize before it
    one that moves queries by a mean of their own                           Router: a Dense for each role

For everything else, and after a transformer in half precision (whose dtype built-in modules would follow), the modules
are bertflow's: ``LayerPooling``, and ``Calibration`` after it.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bertflow.affine import AffineMap
from bertflow.calibrated import CalibratedEncoder
from bertflow.encoder import ENCODER
from bertflow.encoder.folders import recorded_prompts, write_facts
from bertflow.encoder.locating import ST_POOLINGS
from bertflow.errors import UsageError
from bertflow.export.parts import FORMAT, Parts, write_plain
from bertflow.export.st_folder import OURS, PATH, TYPES
from bertflow.files import to_json
from bertflow.maps import UnitMap, fitted_map, gap_of, map_spec
from bertflow.records import read_record
from bertflow.registry import own_modules

PROMPT_NAME = "bertflow"
"""Name of the prompt for documents, which sentence-transformers uses by default."""
LINEAR_TOKENS = ("mean", "cls", "last-token")
"""Token reductions for which the mean over layers equals the reduction of the layers' mean."""
LEGACY_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
"""Ends of the keys of the legacy ``1_Pooling/config.json``."""
WIDTHS = {"legacy": "word_embedding_dimension", "modern": "embedding_dimension"}
"""A layout -> the key of the width that a pooling reads."""


WEIGHT_FILES = "model*.safetensors*"
"""Files of the transformer's weights; a saved encoder has other safetensors beside them."""
StModule = tuple[str, Mapping[str, Any], Mapping[str, Tensor] | None]
"""One module after the transformer: its class, its config.json, and its model.safetensors. The last is None where the
class has none; ours always have one, even if it is empty. A Router has a module for each role instead."""


def write_sentence_transformer(parts: Parts, folder: Path, layout: str) -> dict[str, Any]:
    """Write a sentence-transformers folder.

    Args:
        parts: The encoder, taken apart.
        folder: The folder; it exists.
        layout: A row of ``TYPES``.

    Returns:
        The layout, and the names of the modules after the transformer.

    Raises:
        UsageError: If sentence-transformers cannot do what the encoder does.
    """
    types, pooling = TYPES[layout], _pooling(parts, layout)
    modules = [*pooling, *_calibration(parts, layout, exact=pooling[0][0] in OURS)]
    names = [name for name, *_ in modules]
    _write_saved(parts, folder)
    shutil.copy2(parts.files / "config.json", folder)
    rows = [{"idx": 0, "name": "0", "path": "", "type": types["Transformer"]}]
    for index, module in enumerate(modules, start=1):
        path, kind = folder / f"{index}_{module[0]}", types.get(module[0], PATH + module[0])
        _write_module(path, module, types)
        rows.append({"idx": index, "name": str(index), "path": path.name, "type": kind})
    write_plain(folder / "modules.json", rows)
    write_plain(folder / "config_sentence_transformers.json", _model_config(parts, names))
    write_plain(folder / "sentence_bert_config.json", _transformer_config(parts, names))
    if set(parts.pooling.layers) != {parts.depth}:
        model_config = read_record(folder / "config.json", dict[str, Any])
        write_plain(folder / "config.json", {**model_config, "output_hidden_states": True})
    parts.save_tokenizer(folder)
    return {"layout": layout, "modules": names}


def _write_module(path: Path, module: StModule, types: Mapping[str, str]) -> None:
    name, config, tensors = module
    path.mkdir()
    if name == "Router":
        inside = {role: f"{role}_0_{one[0]}" for role, one in config.items()}
        for role, one in config.items():
            _write_module(path / inside[role], one, types)
        kinds = {inside[role]: types[one[0]] for role, one in config.items()}
        structure, routes = {role: [place] for role, place in inside.items()}, {"default_route": next(iter(config))}
        write_plain(path / "router_config.json", {"types": kinds, "structure": structure, "parameters": routes})
        return
    write_plain(path / "config.json", config)
    if tensors is not None:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path / "model.safetensors")


def _write_saved(parts: Parts, folder: Path) -> None:
    """The weights, and all else that ``CalibratedEncoder.save`` or ``TransformerEncoder.save`` writes."""
    inside = folder / ENCODER
    inside.mkdir()
    for path in parts.files.iterdir():  # copytree would collect errors, and forget what they were
        shutil.copy2(path, folder if path.match(WEIGHT_FILES) else inside)
    record = {**parts.checkpoint.record, **parts.given.raw.describe()}
    above = {name: digest for name, digest in record["sha256"].items() if Path(name).match(WEIGHT_FILES)}
    write_facts(inside, {**record, "weights_above": above})
    if isinstance(parts.given, CalibratedEncoder):
        parts.given.write_calibrator(folder)


def _model_config(parts: Parts, modules: list[str]) -> dict[str, Any]:
    prompts = recorded_prompts(parts.description)
    default = {PROMPT_NAME: prompt} if (prompt := prompts[parts.given.role]) else {}
    config: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "__version__": {"transformers": version("transformers"), "pytorch": version("torch")},
        "prompts": {**prompts, **default},
        "default_prompt_name": next(iter(default), None),
        "similarity_fn_name": "cosine",
    }
    if ours := [name for name in modules if name in OURS]:
        written_by = version("bertflow")
        versions = f">={written_by},<{int(written_by.split('.')[0]) + 1}"
        reason = f"provides the module {' and '.join(ours)}"
        config["requirements"] = {"bertflow": {"specifier": versions, "reason": reason}}
    return config


def _transformer_config(parts: Parts, modules: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {"max_seq_length": parts.max_length, "do_lower_case": False}
    if modules[0] in OURS:
        config["unpad_inputs"] = False  # our pooling reads padded batches, which flash attention may not give
    if parts.checkpoint.takes_pooler and parts.pooling.tokens != "pooler":
        config["model_args"] = {"add_pooling_layer": False}  # its weights were not written, as nothing reads them
    return config


def _pooling(parts: Parts, layout: str) -> list[StModule]:
    pooling = parts.pooling
    if parts.final_norm is None and parts.dtype == "float32":
        if pooling.tokens == "pooler":
            return [_built_in_pooling("cls", parts.dim_hidden, layout), _pooler(parts, layout)]
        if pooling.layers == (parts.depth,) and pooling.tokens in ST_POOLINGS.values():
            return [_built_in_pooling(pooling.tokens, parts.dim_hidden, layout)]
        if pooling.tokens in LINEAR_TOKENS and (len(pooling.layers) == 1 or pooling.join == "mean"):
            return [_weighted_layers(parts, layout), _built_in_pooling(pooling.tokens, parts.dim_hidden, layout)]
    if pooling.tokens == "pooler":
        raise UsageError(
            "The pooling pooler is a layer of the model, which sentence-transformers supports only in float32, and "
            f"this encoder is {parts.dtype}. Open it with dtype float32, or use the target onnx."
        )
    return [_layer_pooling(parts)]


def _built_in_pooling(tokens: str, dim: int, layout: str) -> StModule:
    mode = {ours: theirs for theirs, ours in ST_POOLINGS.items()}[tokens]
    modes: dict[str, Any] = {"pooling_mode": mode}
    if layout == "legacy":
        modes = {f"pooling_mode_{key}": key.split("_token")[0] == mode for key in LEGACY_MODES}
    return "Pooling", {WIDTHS[layout]: dim, **modes, "include_prompt": True}, None


def _weighted_layers(parts: Parts, layout: str) -> StModule:
    start = min(parts.pooling.layers)
    counted = torch.tensor(parts.pooling.layers) - start
    weights = torch.bincount(counted, minlength=parts.depth + 1 - start).float()
    config = {WIDTHS[layout]: parts.dim_hidden, "layer_start": start, "num_hidden_layers": parts.depth}
    return "WeightedLayerPooling", config, {"layer_weights": weights}


def _layer_pooling(parts: Parts) -> StModule:
    head = parts.head()
    config = {
        "embedding_dimension": parts.pooling.width(parts.dim_hidden),
        **asdict(parts.pooling),
        "depth": parts.depth,
        "before": head.ends[0],
        "after": head.ends[1],
        "vocabulary": 0 if parts.token_weights is None else len(parts.token_weights),
        "final_norm": parts.final_norm,
        "mask_at": head.mask_at,
        "lengths": 0 if head.bias is None else head.bias.shape[1],
        "format": FORMAT,
    }
    return "LayerPooling", config, {f"head.{name}": tensor for name, tensor in head.state_dict().items()}


def _pooler(parts: Parts, layout: str) -> StModule:
    pooler: Any = parts.stack.model.pooler
    layer = getattr(pooler, "dense", pooler)  # ALBERT's is the linear layer itself
    return _dense(layout, layer.weight.detach(), layer.bias.detach(), "torch.nn.modules.activation.Tanh")


def _dense(layout: str, weight: Tensor, bias: Tensor, activation: str) -> StModule:
    sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0]}
    # Keys of later versions, which earlier ones do not read.
    ends = ("module_input_name", "module_output_name") if layout == "modern" else ()
    config = {**sizes, "bias": True, "activation_function": activation, **dict.fromkeys(ends, "sentence_embedding")}
    return "Dense", config, {"linear.weight": weight, "linear.bias": bias}


def _calibration(parts: Parts, layout: str, exact: bool) -> list[StModule]:
    """The map; if ``exact``, as ``Calibration``: a ``Dense`` in half precision refuses float32 of ``LayerPooling``."""
    if parts.map is None:
        return []
    affine = fitted_map(parts.map)
    if isinstance(affine, AffineMap) and not exact:
        # (x - shift) @ weight, written as weight^T x + bias; the product in float64, since it cancels.
        weight, shift, gap = affine.weight.double().T, affine.shift.double(), gap_of(parts.map)
        shifts = {"document": shift} if gap is None else {"document": shift, "query": shift + gap.double()}
        dense = {
            role: _dense(layout, weight.float(), -(weight @ one).float(), "torch.nn.modules.linear.Identity")
            for role, one in shifts.items()
        }
        role = parts.given.role  # the first one is where nobody says what is embedded
        last = dense["document"] if gap is None else ("Router", {role: dense[role], **dense}, None)
        return [("Normalize", {}, None), last] if isinstance(parts.map, UnitMap) else [last]
    config = {"map": map_spec(parts.map), "format": FORMAT, "role": parts.given.role}
    config |= {"imports": imports} if (imports := own_modules(*parts.map.modules())) else {}
    tensors = {f"calibrator.{name}": tensor for name, tensor in parts.map.state_dict().items()}
    return [("Calibration", json.loads(to_json(config)), tensors)]
