"""Load an exported sentence-transformers folder without a flag.

sentence-transformers asks for ``trust_remote_code=True`` wherever a folder names a class that is not its own, also one
of an installed package. Here the classes are looked up in a table instead: its own, and bertflow's two. Nothing that
comes with a folder is ever executed.
"""

from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import snapshot_download

from bertflow.encoder.folders import ST_PACKAGE
from bertflow.encoder.truncated import quiet_transformers
from bertflow.errors import DataError, MissingExtraError, UsageError
from bertflow.export.st_modules import OURS, TYPES
from bertflow.files import read_json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CLASSES = ("LayerPooling", "Calibration")
"""What ``bertflow.export.module`` provides."""


def load_sentence_transformer(path: str | Path, device: str | None = None, **options: Any) -> "SentenceTransformer":
    """A ``SentenceTransformer`` from a folder that bertflow exported, or from a hub id of one; needs no flag.

    Args:
        path: The folder, or the hub id.
        device: Where it runs; by default sentence-transformers' own choice.
        options: For its Transformer: ``model_kwargs``, ``processor_kwargs``, ``config_kwargs``.

    Raises:
        MissingExtraError: If sentence-transformers is not installed.
        DataError: If the folder names a class that is neither sentence-transformers' nor bertflow's.
        UsageError: If there is no such folder.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("sentence-transformers", "st") from None
    folder = _folder(path)
    config = read_json(folder / "config_sentence_transformers.json")
    modules: Any = OrderedDict()  # it takes one, though its signature says list
    with quiet_transformers():
        for row in read_json(folder / "modules.json"):
            kind = _class(row["type"], folder)
            modules[row["name"]] = kind.load(
                str(folder), subfolder=row["path"], local_files_only=True, **(options if not modules else {})
            )
    return SentenceTransformer(
        modules=modules,
        device=device,
        prompts=config.get("prompts"),
        default_prompt_name=config.get("default_prompt_name"),
        similarity_fn_name=config.get("similarity_fn_name"),
    )


def _folder(path: str | Path) -> Path:
    folder = Path(path).expanduser()
    if not folder.is_dir() and len(folder.parts) == 2 and not folder.is_absolute():
        folder = Path(snapshot_download(str(path)))
    if not (folder / "modules.json").is_file():
        raise UsageError(
            f"{path} is no sentence-transformers folder: it holds no modules.json. "
            "Write one with `bertflow export MODEL --target sentence-transformers`."
        )
    return folder


def _class(dotted: str, folder: Path) -> Any:
    package, _, name = dotted.rpartition(".")
    ours = dotted in {OURS + known for known in CLASSES}
    if not ours and not dotted.startswith(ST_PACKAGE):
        raise DataError(
            f"{folder / 'modules.json'} names the class {dotted}, which is neither sentence-transformers' nor "
            f"bertflow's ({', '.join(CLASSES)}). Load it with sentence-transformers, if you trust it."
        )
    if dotted in TYPES["legacy"].values():  # the library warns of its own old paths
        package = TYPES["modern"][name].rpartition(".")[0]
    return getattr(import_module(package), name)
