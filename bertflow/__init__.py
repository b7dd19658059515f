"""Label-free calibration of sentence embeddings: a frozen encoder, a flow or a closed form, an isotropic space.

The public names are loaded when they are first used, so that ``import bertflow`` is instant.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertflow.advise.fixing import fix as fix
    from bertflow.calibrated import CalibratedEncoder as CalibratedEncoder
    from bertflow.calibration.base import Provenance as Provenance
    from bertflow.calibration.flow import FlowCalibrator as FlowCalibrator
    from bertflow.calibration.linear import AllButTheTop as AllButTheTop
    from bertflow.calibration.linear import Center as Center
    from bertflow.calibration.linear import Standardize as Standardize
    from bertflow.calibration.linear import Whitening as Whitening
    from bertflow.calibration.saving import load_calibrator as load_calibrator
    from bertflow.data.answers import Answer as Answer
    from bertflow.data.corpus import load_sentences as load_sentences
    from bertflow.encoder.abstract import SentenceEncoder as SentenceEncoder
    from bertflow.encoder.transformer import TransformerEncoder as TransformerEncoder
    from bertflow.evaluation.sweeping import sweep as sweep
    from bertflow.evaluation.tasks import evaluate_binary as evaluate_binary
    from bertflow.evaluation.tasks import evaluate_retrieval as evaluate_retrieval
    from bertflow.evaluation.tasks import evaluate_sts as evaluate_sts
    from bertflow.evaluation.verification import verify_paper as verify_paper
    from bertflow.export.diagnosis import diagnose as diagnose
    from bertflow.export.st_folder import load_sentence_transformer as load_sentence_transformer
    from bertflow.export.targets import export_encoder as export_encoder
    from bertflow.moments import Moments as Moments
    from bertflow.retrieval.index import AnswerIndex as AnswerIndex
    from bertflow.retrieval.indexing import add_answers as add_answers
    from bertflow.retrieval.indexing import build_index as build_index
    from bertflow.retrieval.indexing import describe_index as describe_index
    from bertflow.retrieval.indexing import recalibrate_index as recalibrate_index
    from bertflow.retrieval.indexing import remove_answers as remove_answers
    from bertflow.retrieval.indexing import update_answers as update_answers
    from bertflow.retrieval.indexing import write_search_example as write_search_example
    from bertflow.retrieval.searching import evaluate_search as evaluate_search
    from bertflow.retrieval.searching import search as search
    from bertflow.runs.encoder_run import finetune as finetune
    from bertflow.runs.flow_run import train as train
    from bertflow.scoring.domain import DomainCheck as DomainCheck
    from bertflow.scoring.pairs import score as score
    from bertflow.scoring.scores import ScoreCalibrator as ScoreCalibrator
    from bertflow.serve.serving import serve_encoder as serve_encoder
    from bertflow.store.store import EmbeddingStore as EmbeddingStore
    from bertflow.training.module import BertFlow as BertFlow

__version__ = version("bertflow")

_HOMES = {
    "AllButTheTop": "bertflow.calibration.linear",
    "Answer": "bertflow.data.answers",
    "AnswerIndex": "bertflow.retrieval.index",
    "BertFlow": "bertflow.training.module",
    "CalibratedEncoder": "bertflow.calibrated",
    "Center": "bertflow.calibration.linear",
    "DomainCheck": "bertflow.scoring.domain",
    "EmbeddingStore": "bertflow.store.store",
    "FlowCalibrator": "bertflow.calibration.flow",
    "Moments": "bertflow.moments",
    "Provenance": "bertflow.calibration.base",
    "ScoreCalibrator": "bertflow.scoring.scores",
    "SentenceEncoder": "bertflow.encoder.abstract",
    "Standardize": "bertflow.calibration.linear",
    "TransformerEncoder": "bertflow.encoder.transformer",
    "Whitening": "bertflow.calibration.linear",
    "add_answers": "bertflow.retrieval.indexing",
    "build_index": "bertflow.retrieval.indexing",
    "describe_index": "bertflow.retrieval.indexing",
    "diagnose": "bertflow.export.diagnosis",
    "evaluate_binary": "bertflow.evaluation.tasks",
    "evaluate_retrieval": "bertflow.evaluation.tasks",
    "evaluate_sts": "bertflow.evaluation.tasks",
    "evaluate_search": "bertflow.retrieval.searching",
    "export_encoder": "bertflow.export.targets",
    "fix": "bertflow.advise.fixing",
    "finetune": "bertflow.runs.encoder_run",
    "load_calibrator": "bertflow.calibration.saving",
    "load_sentence_transformer": "bertflow.export.st_folder",
    "load_sentences": "bertflow.data.corpus",
    "recalibrate_index": "bertflow.retrieval.indexing",
    "remove_answers": "bertflow.retrieval.indexing",
    "score": "bertflow.scoring.pairs",
    "search": "bertflow.retrieval.searching",
    "serve_encoder": "bertflow.serve.serving",
    "sweep": "bertflow.evaluation.sweeping",
    "verify_paper": "bertflow.evaluation.verification",
    "update_answers": "bertflow.retrieval.indexing",
    "write_search_example": "bertflow.retrieval.indexing",
    "train": "bertflow.runs.flow_run",
}
"""Where each public name lives."""

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertflow' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
