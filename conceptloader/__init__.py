"""conceptloader: token streams with concepts attached, shuffled and blended without index arrays.

Public names are imported on first use, so that `import conceptloader` costs neither torch nor numpy. Type checkers and
editors read them in the block of imports below.

Open loader/batch/loader.py first; design/architecture.md has the way from there to the bytes.
"""

import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from conceptloader.base.version import __version__

if os.name != "posix":
    raise ImportError(
        f"conceptloader: found the operating system {os.name!r}, expected Linux, whose positioned reads and file locks "
        "it uses; on Windows run it in WSL"
    )

if TYPE_CHECKING:
    from conceptloader import adapters, concepts, errors, testing, trace, writing
    from conceptloader.columns.writer import column_writer
    from conceptloader.config import Blend, Config, load_config, open_blend
    from conceptloader.errors import ConceptloaderError
    from conceptloader.format.read.dataset import Dataset, open_dataset
    from conceptloader.format.spec.codecs import register_codec
    from conceptloader.format.tools.concat import concat
    from conceptloader.format.tools.verify import verify
    from conceptloader.ingest.adopt.adopt import adopt
    from conceptloader.ingest.annotate.annotate import annotate
    from conceptloader.ingest.build.simple import build
    from conceptloader.loader import metrics
    from conceptloader.loader.batch.loader import NumpyLoader, batches
    from conceptloader.loader.batch.source import GrainSource
    from conceptloader.loader.torch.collate import TensorBatch, collate_fn
    from conceptloader.loader.torch.dataset import SampleDataset
    from conceptloader.loader.torch.loader import Loader, make_dataloader
    from conceptloader.loader.torch.losses import DatasetLosses, TokenMean, token_mean
    from conceptloader.loader.torch.samplers import EpochSampler
    from conceptloader.loader.torch.trained import EvaluationLoader, TrainedLoader
    from conceptloader.order.mixture import Mixture
    from conceptloader.order.progress.found import find_state
    from conceptloader.order.segments import Segment
    from conceptloader.run import mixing
    from conceptloader.trace.viewer.decode import decode

_MODULES = {name: name for name in ("adapters", "concepts", "errors", "testing", "trace", "writing")}
_MODULES |= {"metrics": "loader.metrics", "mixing": "run.mixing"}
_HOMES = {
    "loader.batch.loader": "NumpyLoader batches",
    "loader.batch.source": "GrainSource",
    "config": "Blend Config load_config open_blend",
    "columns.writer": "column_writer",
    "errors": "ConceptloaderError",
    "format.read.dataset": "Dataset open_dataset",
    "format.spec.codecs": "register_codec",
    "format.tools.concat": "concat",
    "format.tools.verify": "verify",
    "ingest.adopt.adopt": "adopt",
    "ingest.annotate.annotate": "annotate",
    "ingest.build.simple": "build",
    "order.mixture": "Mixture",
    "order.segments": "Segment",
    "order.progress.found": "find_state",
    "loader.torch.collate": "TensorBatch collate_fn",
    "loader.torch.dataset": "SampleDataset",
    "loader.torch.loader": "Loader make_dataloader",
    "loader.torch.losses": "DatasetLosses TokenMean token_mean",
    "loader.torch.samplers": "EpochSampler",
    "loader.torch.trained": "EvaluationLoader TrainedLoader",
    "trace.viewer.decode": "decode",
}
_PUBLIC = _MODULES | {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Blend", "ConceptloaderError", "Config", "Dataset", "DatasetLosses",
    "EpochSampler", "EvaluationLoader", "GrainSource", "Loader",
    "Mixture", "NumpyLoader", "SampleDataset", "Segment", "TensorBatch", "TokenMean", "TrainedLoader",
    "__version__", "adapters", "adopt", "annotate", "batches", "build", "collate_fn", "column_writer", "concat",
    "concepts", "decode", "errors", "find_state", "load_config", "make_dataloader", "metrics", "mixing", "open_blend",
    "open_dataset", "register_codec", "testing", "token_mean", "trace", "verify", "writing",
]  # fmt: skip

if not TYPE_CHECKING:  # to a checker, a name that is not above is an error

    def __getattr__(name: str) -> object:
        from conceptloader.base.packages import unknown_name

        if name not in __all__:
            raise unknown_name(__name__, name)
        try:
            module = import_module(f"{__name__}.{_PUBLIC[name]}")
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] != "torch":
                raise
            from conceptloader.errors import MissingPackageError

            raise MissingPackageError(
                f"conceptloader.{name}", "no torch package", "torch, which this name needs", "pip install torch"
            ) from error
        return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    """The names that can be imported here, so that `help` works without torch."""
    torch = find_spec("torch") is not None
    needs = ("loader.torch.", "concepts")
    return [name for name in __all__ if torch or not _PUBLIC.get(name, "").startswith(needs)]
