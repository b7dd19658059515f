# The public names and where each lives. `bertflow/__init__.py` loads a name when it is first used.

from .advise.fixing import fix as fix
from .calibrated import CalibratedEncoder as CalibratedEncoder
from .calibration.base import Provenance as Provenance
from .calibration.flow import FlowCalibrator as FlowCalibrator
from .calibration.linear import AllButTheTop as AllButTheTop
from .calibration.linear import Center as Center
from .calibration.linear import Standardize as Standardize
from .calibration.linear import Whitening as Whitening
from .calibration.saving import load_calibrator as load_calibrator
from .data.answers import Answer as Answer
from .data.corpus import load_sentences as load_sentences
from .encoder.abstract import SentenceEncoder as SentenceEncoder
from .encoder.transformer import TransformerEncoder as TransformerEncoder
from .evaluation.evaluating import evaluate as evaluate
from .evaluation.sweeping import sweep as sweep
from .evaluation.tasks import evaluate_binary as evaluate_binary
from .evaluation.tasks import evaluate_retrieval as evaluate_retrieval
from .evaluation.tasks import evaluate_sts as evaluate_sts
from .evaluation.verification import verify_paper as verify_paper
from .export.diagnosis import diagnose as diagnose
from .export.st_folder import load_sentence_transformer as load_sentence_transformer
from .export.targets import export_encoder as export_encoder
from .moments import Moments as Moments
from .retrieval.index import AnswerIndex as AnswerIndex
from .retrieval.indexing import add_answers as add_answers
from .retrieval.indexing import build_index as build_index
from .retrieval.indexing import describe_index as describe_index
from .retrieval.indexing import recalibrate_index as recalibrate_index
from .retrieval.indexing import remove_answers as remove_answers
from .retrieval.indexing import update_answers as update_answers
from .retrieval.indexing import write_search_example as write_search_example
from .retrieval.searching import evaluate_search as evaluate_search
from .retrieval.searching import search as search
from .runs.encoder_run import finetune as finetune
from .runs.flow_run import train as train
from .runs.vectors import embed as embed
from .runs.vectors import fit as fit
from .runs.vectors import transform as transform
from .scoring.domain import DomainCheck as DomainCheck
from .scoring.pairs import score as score
from .scoring.scores import ScoreCalibrator as ScoreCalibrator
from .serve.serving import serve_encoder as serve_encoder
from .store.store import EmbeddingStore as EmbeddingStore
from .training.module import BertFlow as BertFlow

__version__: str
