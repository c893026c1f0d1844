"""conceptloader: token streams with concepts attached, shuffled and blended without index arrays.

Public names are imported on first use, so that `import conceptloader` costs neither torch nor numpy. Type checkers and
editors read them in the block of imports below.

Open batch/loader.py first; docs/architecture.md has the way from there to the bytes.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from conceptloader.base import shown
from conceptloader.base.version import __version__

if os.name != "posix":
    raise ImportError(
        f"conceptloader: found the operating system {os.name!r}, expected Linux, whose positioned reads and file locks "
        "it uses; on Windows run it in WSL"
    )

if TYPE_CHECKING:
    from conceptloader import errors, mixing, testing, trace
    from conceptloader.base.hashing import derive_key
    from conceptloader.batch.digest import batch_digest
    from conceptloader.batch.loader import BaseLoader, NumpyLoader, batches
    from conceptloader.batch.source import GrainSource
    from conceptloader.blend import Blend, Config, build_mixture, load_config, open_blend
    from conceptloader.errors import (
        ConceptloaderError,
        ConfigError,
        FormatError,
        InputError,
        MissingPackageError,
        ReadError,
        ResumeError,
        UnboundedLoaderError,
    )
    from conceptloader.format.read.dataset import Dataset, DocumentView, Windows, open_dataset
    from conceptloader.format.spec.manifest import Tokenizer
    from conceptloader.format.spec.options import BuildOptions, TrackOptions
    from conceptloader.format.tools.concat import concat
    from conceptloader.format.tools.reencode import reencode
    from conceptloader.format.tools.verify import verify
    from conceptloader.format.write.build import create_writer, open_writer
    from conceptloader.format.write.finalize import finalize
    from conceptloader.ingest.adopt.adopt import adopt
    from conceptloader.ingest.align.rules import SpanAlignment
    from conceptloader.ingest.annotate.annotate import AnnotateOptions, annotate
    from conceptloader.ingest.build.simple import build
    from conceptloader.ingest.records.columns import Columns
    from conceptloader.metrics.steps import StepMetrics, log_steps, on_step, to_prometheus
    from conceptloader.order.mixture import Mixture
    from conceptloader.order.partition import Partition, Plan
    from conceptloader.order.permutation import Permutation
    from conceptloader.order.phases import Phase, Ramp
    from conceptloader.order.progress.found import find_state
    from conceptloader.order.progress.runlog import RunLog, RunStart
    from conceptloader.order.progress.spec import OrderSpec
    from conceptloader.order.schedule import BatchSchedule
    from conceptloader.order.sequential import Sequential
    from conceptloader.order.skips import Skip
    from conceptloader.torch.collate import TensorBatch, collate_fn
    from conceptloader.torch.concepts import (
        TrackTensors,
        annotation_status,
        noisy_or,
        sample_negatives,
        span_concepts,
        span_mask,
        span_targets,
        token_concepts,
        token_values,
        track,
    )
    from conceptloader.torch.dataset import SampleDataset
    from conceptloader.torch.fim import FillInMiddle
    from conceptloader.torch.loader import Loader, make_dataloader
    from conceptloader.torch.losses import DatasetLosses
    from conceptloader.torch.samplers import DistributedSampler, EpochSampler, MixtureSampler
    from conceptloader.torch.trained import EvaluationLoader, TrainedLoader
    from conceptloader.trace.losses import LossLog
    from conceptloader.viewer.decode import DecodedSample, DecodedSpan, decode

_MODULES = ("errors", "mixing", "testing", "trace")
_HOMES = {
    "base.hashing": "derive_key",
    "batch.digest": "batch_digest",
    "blend": "Blend Config build_mixture load_config open_blend",
    "errors": "ConceptloaderError ConfigError UnboundedLoaderError FormatError InputError MissingPackageError "
    "ReadError ResumeError",
    "format.read.dataset": "Dataset DocumentView Windows open_dataset",
    "format.spec.manifest": "Tokenizer",
    "format.spec.options": "BuildOptions TrackOptions",
    "format.tools.reencode": "reencode",
    "format.tools.concat": "concat",
    "format.tools.verify": "verify",
    "format.write.build": "create_writer open_writer",
    "format.write.finalize": "finalize",
    "ingest.adopt.adopt": "adopt",
    "ingest.annotate.annotate": "AnnotateOptions annotate",
    "ingest.build.simple": "build",
    "ingest.align.rules": "SpanAlignment",
    "ingest.records.columns": "Columns",
    "order.mixture": "Mixture",
    "order.partition": "Partition Plan",
    "order.permutation": "Permutation",
    "order.phases": "Phase Ramp",
    "order.progress.found": "find_state",
    "order.progress.runlog": "RunLog RunStart",
    "order.progress.spec": "OrderSpec",
    "order.schedule": "BatchSchedule",
    "order.sequential": "Sequential",
    "order.skips": "Skip",
    "torch.collate": "TensorBatch collate_fn",
    "torch.concepts": "TrackTensors annotation_status noisy_or sample_negatives span_concepts span_mask span_targets "
    "token_concepts token_values track",
    "torch.dataset": "SampleDataset",
    "torch.fim": "FillInMiddle",
    "torch.loader": "Loader make_dataloader",
    "torch.losses": "DatasetLosses",
    "batch.loader": "BaseLoader NumpyLoader batches",
    "batch.source": "GrainSource",
    "metrics.steps": "StepMetrics log_steps on_step to_prometheus",
    "torch.samplers": "DistributedSampler EpochSampler MixtureSampler",
    "torch.trained": "EvaluationLoader TrainedLoader",
    "trace.losses": "LossLog",
    "viewer.decode": "DecodedSample DecodedSpan decode",
}
_PUBLIC = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AnnotateOptions", "BaseLoader", "BatchSchedule", "Blend", "BuildOptions", "Columns", "ConceptloaderError",
    "Config", "ConfigError", "Dataset", "DatasetLosses", "DecodedSample", "DecodedSpan", "DistributedSampler",
    "DocumentView", "EpochSampler", "EvaluationLoader", "FillInMiddle", "FormatError", "GrainSource", "InputError",
    "Loader", "LossLog", "MissingPackageError", "Mixture", "MixtureSampler", "NumpyLoader", "OrderSpec",
    "Partition", "Permutation", "Phase", "Plan", "Ramp", "ReadError", "ResumeError", "RunLog", "RunStart",
    "SampleDataset", "Sequential", "Skip", "SpanAlignment", "StepMetrics", "TensorBatch", "Tokenizer", "TrackOptions",
    "TrackTensors", "TrainedLoader", "UnboundedLoaderError", "Windows", "__version__", "adopt", "annotate",
    "annotation_status", "batch_digest", "batches", "build", "build_mixture", "collate_fn", "concat",
    "create_writer", "decode", "derive_key", "errors", "finalize", "find_state", "load_config", "log_steps",
    "make_dataloader", "mixing", "noisy_or", "on_step", "open_blend", "open_dataset", "open_writer", "reencode",
    "sample_negatives", "span_concepts", "span_mask", "span_targets", "testing", "to_prometheus", "token_concepts",
    "token_values", "trace", "track", "verify",
]  # fmt: skip

# Objects of the lower layers show themselves in notebooks, which is imported when one asks.
shown.draw = lambda thing, *place, **options: import_module("conceptloader.viewer").show(thing, *place, **options)

if not TYPE_CHECKING:  # to a checker, a name that is not above is an error

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name in _PUBLIC:
            try:
                return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
            except ModuleNotFoundError as error:
                if str(error.name).partition(".")[0] != "torch":
                    raise
                from conceptloader.errors import MissingPackageError

                raise MissingPackageError(
                    f"conceptloader.{name}: the torch package is not installed; pip install torch"
                ) from error
        from conceptloader.base.packages import unknown_name

        raise unknown_name(__name__, name)


def __dir__() -> list[str]:
    """The names that can be imported here, so that `help` works without torch."""
    torch = find_spec("torch") is not None
    return [name for name in __all__ if torch or not _PUBLIC.get(name, "").startswith("torch.")]
