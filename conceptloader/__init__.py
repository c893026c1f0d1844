"""conceptloader: token streams with concepts attached, shuffled and blended without index arrays.

Public names are imported on first use, so that `import conceptloader` costs neither numba nor torch.

Open torch/loader.py first; docs/architecture.md has the way from there to the bytes.
"""

import os
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

if os.name != "posix":
    raise ImportError(
        f"conceptloader: found the operating system {os.name!r}, expected Linux, whose positioned reads and file locks "
        "it uses; on Windows run it in WSL"
    )

_PUBLIC = {
    "open_dataset": "format.read.dataset",
    "Dataset": "format.read.dataset",
    "BuildOptions": "format.spec.options",
    "TrackOptions": "format.spec.options",
    "Tokenizer": "format.spec.manifest",
    "create_build": "format.write.build",
    "open_build": "format.write.build",
    "finalize": "format.write.finalize",
    "convert": "format.tools.convert",
    "join": "format.tools.join",
    "verify": "format.tools.verify",
    "derive_key": "base.hashing",
    "Permutation": "order.permutation",
    "Mixture": "order.mixture",
    "Phase": "order.mixture",
    "Skip": "order.skips",
    "Sequential": "order.sequential",
    "BatchSchedule": "order.schedule",
    "Partition": "order.partition",
    "Plan": "order.partition",
    "OrderSpec": "order.progress.spec",
    "RunLog": "order.progress.runlog",
    "RunStart": "order.progress.runlog",
    "Config": "blend",
    "load_config": "blend",
    "build_mixture": "blend",
    "Blend": "blend",
    "open_blend": "blend",
    "make_dataloader": "torch.loader",
    "Loader": "torch.loader",
    "SampleDataset": "torch.dataset",
    "TrainedLoader": "torch.trained",
    "EvaluationLoader": "torch.trained",
    "collate_fn": "torch.collate",
    "batch_digest": "batch.digest",
    "LossLog": "trace.losses",
    "EpochSampler": "torch.samplers",
    "MixtureSampler": "torch.samplers",
    "DistributedSampler": "torch.samplers",
}

__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        try:
            return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        except ModuleNotFoundError as error:
            if str(error.name).partition(".")[0] != "torch":
                raise
            from conceptloader.errors import MissingPackageError

            raise MissingPackageError(
                f"conceptloader.{name}: the torch package is not installed; pip install 'conceptloader[torch]'"
            ) from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
