"""A sentence-transformers folder, written without sentence-transformers: JSON, safetensors, and the tokenizer.

    config.json  model.safetensors  tokenizer.json  ...   the transformer: the blocks that the pooling needs
    modules.json  1_Pooling/  2_Dense/                    what follows it (``st_modules``)
    sentence_bert_config.json                             longest sentence
    config_sentence_transformers.json                     prompt, and which bertflow our own modules need

A folder of built-in modules alone loads anywhere. One with a module of ours needs bertflow, and sentence-transformers
asks for ``trust_remote_code=True``; ``load_sentence_transformer`` needs no flag.
"""

import inspect
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import MODEL_MAPPING

from bertflow.encoder.folders import RECORD_FILE
from bertflow.encoder.token_counts import COUNTS_FILE
from bertflow.export.parts import Parts, save_tokenizer
from bertflow.export.st_modules import TYPES, StModule, modules_of
from bertflow.files import read_json
from bertflow.registry import lookup

PROMPT_NAME = "bertflow"
"""What sentence-transformers calls the prompt that the encoder was fitted with."""


def write_sentence_transformer(parts: Parts, layout: str = "legacy") -> list[StModule]:
    """Make the folder with the encoder's files a sentence-transformers folder.

    Args:
        parts: Taken apart into that folder.
        layout: A row of ``TYPES``.

    Returns:
        The modules behind the transformer.

    Raises:
        UnknownNameError: For an unknown layout.
        UsageError: If sentence-transformers cannot do what the encoder does.
    """
    types, folder, modules = lookup("layout", TYPES, layout), parts.files, modules_of(parts)
    rows = [{"idx": 0, "name": "0", "path": "", "type": types["Transformer"]}]
    for index, module in enumerate(modules, start=1):
        path = f"{index}_{module.name}"
        module.write(folder / path, layout)
        rows.append({"idx": index, "name": str(index), "path": path, "type": module.type(layout)})
    _write(folder / "modules.json", rows)
    _write(folder / "config_sentence_transformers.json", _model_config(parts, modules))
    _write(folder / "sentence_bert_config.json", _transformer_config(parts, modules))
    if set(parts.layers) != {parts.depth}:
        config = read_json(folder / "config.json")
        _write(folder / "config.json", {**config, "output_hidden_states": True})
    save_tokenizer(parts, folder)
    # It says what bertflow's own encoder is, and would be taken for one, without the calibrator.
    for name in (RECORD_FILE, COUNTS_FILE):
        (folder / name).unlink(missing_ok=True)
    return modules


def _model_config(parts: Parts, modules: list[StModule]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": "SentenceTransformer",
        "__version__": {"transformers": version("transformers"), "pytorch": version("torch")},
        "prompts": {"query": parts.prompt, "document": parts.prompt},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    if parts.prompt:
        config["prompts"][PROMPT_NAME], config["default_prompt_name"] = parts.prompt, PROMPT_NAME
    ours = [module.name for module in modules if not module.builtin]
    if ours:
        written_by = version("bertflow")
        config["requirements"] = {
            "bertflow": {
                "specifier": f">={written_by},<{int(written_by.split('.')[0]) + 1}",
                "reason": f"provides the module {' and '.join(ours)}",
            }
        }
    return config


def _transformer_config(parts: Parts, modules: list[StModule]) -> dict[str, Any]:
    config: dict[str, Any] = {"max_seq_length": parts.max_length, "do_lower_case": False}
    if not modules[0].builtin:
        config["unpad_inputs"] = (
            False  # our pooling reads padded batches; with flash attention they may come end to end
        )
    model_class: Any = MODEL_MAPPING[type(parts.checkpoint.config)]
    if "add_pooling_layer" in inspect.signature(model_class).parameters and parts.pooling.tokens != "pooler":
        config["model_args"] = {"add_pooling_layer": False}  # whose weights were not written, as nothing reads them
    return config


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
