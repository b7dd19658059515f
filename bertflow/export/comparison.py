"""``compare_with_golden``: ask a server, or a folder on this machine, for the golden sentences; compare, explain."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertflow.errors import UsageError
from bertflow.results import AbstractResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertflow.export.diagnosis import Finding

    Embed = Callable[[list[str]], NDArray[np.float32]]


@dataclass(frozen=True, repr=False)
class Comparison(AbstractResult):
    """What was compared with the golden vectors, and what was found.

    Attributes:
        finding: Whether they are the golden ones, and why not.
        where: The server or folder.
        vectors: How many were compared.
        tolerance: Accepted distance, as a share of a row's length.
        golden: Description of the encoder that the golden vectors are of.
    """

    finding: "Finding"
    where: str
    vectors: int
    tolerance: float
    golden: Mapping[str, Any]

    title: ClassVar[str] = "Comparison with the golden vectors"

    def parts(self) -> Iterator[str]:
        """What was compared; and that it is right, if it is."""
        same_width = self.finding.distance < float("inf")
        off = f"{self.finding.distance:.1e} of their length" if same_width else "another width"
        yield (
            f"golden    {self.golden['encoder']}, {self.golden['pooling']}, "
            f"{self.golden.get('calibrator', 'as it comes')}, max_length={self.golden['max_length']}"
        )
        yield (
            f"compared  {self.vectors} vectors of {self.where}: off by {off} (median), {self.tolerance:.0e} is accepted"
        )
        if self.finding.right:
            yield f"right     {self.finding.text}"

    def missed(self) -> str:
        """What is wrong, if something is."""
        return "" if self.finding.right else self.finding.text

    def as_dict(self) -> dict[str, Any]:
        """Everything; a distance that is not a number, because widths differ, is null."""
        distance = self.finding.distance if self.finding.distance < float("inf") else None
        facts = {"where": self.where, "vectors": self.vectors, "tolerance": self.tolerance, "golden": dict(self.golden)}
        return {"right": self.finding.right, "text": self.finding.text, "distance": distance, **facts}


def compare_with_golden(
    golden: str | Path,
    url: str | None = None,
    model: str | Path | None = None,
    model_name: str = "bertflow",
    key: str | None = None,
    normalized: bool = False,
    batch: int = 8,
) -> Comparison:
    """Compare what a server, or a folder on this machine, answers to 32 golden sentences with what it should.

    What is wrong is named: calibrator left out, another pooling, half precision, unit length, another longest sentence,
    prompt left out. Exit code 0 when it is right, 4 when it differs.

    Args:
        golden: An exported folder, or its golden.json.
        url: Of a server with an OpenAI-compatible /v1/embeddings.
        model: Instead of a server: an exported or saved folder, to be run here.
        model_name: What the server calls the model.
        key: Environment variable that holds the server's key.
        normalized: Whether vectors of unit length are what is wanted.
        batch: Sentences in a request.

    Returns:
        What was found.

    Raises:
        UsageError: If it is not one of ``url`` and ``model`` that is given, or it cannot be asked.
        DataError: If there are no golden vectors, or the server does not answer.
    """
    from bertflow.export.diagnosis import diagnose
    from bertflow.export.golden import Golden

    if batch < 1:
        raise UsageError(f"batch should be 1 or more, got {batch}.")
    if bool(url) == bool(model):
        given = "both" if url else "neither"
        raise UsageError(f"One of url, a server, and model, a folder, is wanted; got {given}. Give one.")
    kept = Golden.read(golden)
    got = _remotely(url, model_name, key, batch)(kept.sentences) if url else _locally(str(model))(kept.sentences)
    described = {**kept.describe, "max_length": kept.max_length}
    finding = diagnose(kept, got, normalized)
    return Comparison(finding, str(url or model), len(got), kept.tolerance, described)


def _remotely(url: str, model_name: str, key: str | None, batch: int) -> "Embed":
    from bertflow.export.client import embed_remotely

    secret = os.environ.get(key) if key else None
    if key and not secret:
        raise UsageError(f"key names the environment variable {key}, which is not set. Set it.")
    return lambda sentences: embed_remotely(url, sentences, model_name, secret, batch)


def _locally(model: str) -> "Embed":
    import numpy as np

    from bertflow.calibrated import RECORD as CALIBRATED
    from bertflow.calibrated import CalibratedEncoder
    from bertflow.encoder.folders import RECORD_FILE
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.export.onnx_encoder import GRAPH, OnnxEncoder
    from bertflow.export.st_folder import load_sentence_transformer

    def sentence_transformer(folder: Path) -> "Embed":
        opened = load_sentence_transformer(folder, device="cpu")
        return lambda sentences: np.asarray(opened.encode(sentences), np.float32)

    kinds: Mapping[
        str, Callable[[Path], Embed]
    ] = {  # what a folder is known by -> how it is run; the first that is there
        str(GRAPH): lambda folder: OnnxEncoder(folder).encode,
        CALIBRATED: lambda folder: CalibratedEncoder.load(folder, device="cpu").encode,
        RECORD_FILE: lambda folder: TransformerEncoder(folder, device="cpu").encode,
        "modules.json": sentence_transformer,
    }
    for name, opened in kinds.items():
        if (Path(model) / name).is_file():
            return opened(Path(model))
    raise UsageError(f"{model} is nothing that can be run here: it holds none of {', '.join(kinds)}. Export it again.")
