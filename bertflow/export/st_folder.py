"""A sentence-transformers folder that bertflow wrote, loaded without a flag: classes are looked up in a table.

sentence-transformers loads a folder that names a class of another package only with ``trust_remote_code=True``, even if
the package is installed. No code in a folder is ever executed.
"""

from collections import OrderedDict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import snapshot_download

from bertflow.encoder.architecture import OneLine
from bertflow.encoder.folders import DOWNLOAD, StConfig
from bertflow.encoder.locating import ST_PACKAGE, read_modules
from bertflow.errors import DataError, UsageError, needs
from bertflow.places import expand
from bertflow.records import read_record, require_export

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PATH = "bertflow.export.module."
OURS = ("LayerPooling", "Calibration")
"""The classes of ``bertflow.export.module``, for which sentence-transformers asks for a flag."""
LEGACY, BASE = "sentence_transformers.models.", "sentence_transformers.base.modules."
SENTENCE = "sentence_transformers.sentence_transformer.modules."
MODERN: Mapping[str, str] = {
    "Transformer": BASE + "transformer.Transformer",
    "WeightedLayerPooling": SENTENCE + "weighted_layer_pooling.WeightedLayerPooling",
    "Pooling": SENTENCE + "pooling.Pooling",
    "Normalize": BASE + "normalize.Normalize",
    "Dense": BASE + "dense.Dense",
    "Router": BASE + "router.Router",
}
TYPES: Mapping[str, Mapping[str, str]] = {"legacy": {name: LEGACY + name for name in MODERN}, "modern": MODERN}
"""A layout -> the path of each built-in class. text-embeddings-inference knows only the legacy ones."""


def load_sentence_transformer(path: str | Path, device: str | None = None, **options: Any) -> "SentenceTransformer":
    """Load a ``SentenceTransformer`` from a folder that bertflow exported, or from its hub id; needs no flag.

    Args:
        path: The folder, or the hub id.
        device: Where it runs; by default sentence-transformers chooses.
        options: Options of its Transformer: ``model_kwargs``, ``processor_kwargs``, ``config_kwargs``.

    Raises:
        MissingExtraError: If sentence-transformers is not installed.
        DataError: If the folder names a class that is neither sentence-transformers' nor bertflow's.
        UsageError: If there is no such folder.
    """
    with needs("sentence-transformers", "st"):
        from sentence_transformers import SentenceTransformer
    folder = _folder(path)
    require_export(folder)
    config = read_record(folder / "config_sentence_transformers.json", StConfig, "configuration", DOWNLOAD)
    modules: Any = OrderedDict()  # the constructor takes one, though its signature says list
    with OneLine(f"{folder} cannot be loaded"):
        for row in read_modules(folder):
            kind = _class(row.type, folder)
            where = {"subfolder": row.path, "local_files_only": True}
            modules[row.name] = kind.load(str(folder), **where, **(options if not modules else {}))
        return SentenceTransformer(modules=modules, device=device, **vars(config))


def _folder(path: str | Path) -> Path:
    folder = expand(path)
    if not folder.is_dir() and len(folder.parts) == 2 and not folder.is_absolute():
        folder = Path(snapshot_download(str(path)))
    if not (folder / "modules.json").is_file():
        raise UsageError(
            f"{path} is not a sentence-transformers folder: it holds no modules.json. "
            "Write one with `bertflow export MODEL --target sentence-transformers`."
        )
    return folder


def _class(dotted: str, folder: Path) -> Any:
    package, _, name = dotted.rpartition(".")
    ours = dotted in {PATH + known for known in OURS}
    if not ours and not dotted.startswith(ST_PACKAGE):
        raise DataError(
            f"{folder / 'modules.json'} names the class {dotted}, which belongs neither to sentence-transformers nor "
            f"to bertflow ({', '.join(OURS)}). Load it with sentence-transformers, if you trust it."
        )
    if dotted in TYPES["legacy"].values():  # the library warns of its own old paths
        package = MODERN[name].rpartition(".")[0]
    return getattr(import_module(package), name)
