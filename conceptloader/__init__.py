"""conceptloader: token streams with concepts attached, shuffled and blended without index arrays.

Public names are imported on first use, so that `import conceptloader` costs neither numba nor torch.
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
    "open_dataset": "dataset",
    "Dataset": "dataset",
    "BuildOptions": "format.options",
    "TrackOptions": "format.options",
    "Tokenizer": "format.manifest",
    "create_build": "format.build",
    "open_build": "format.build",
    "finalize": "format.finalize",
    "convert": "format.convert",
    "join": "format.join",
    "verify": "format.verify",
    "derive_key": "hashing",
    "Permutation": "order.permutation",
    "Mixture": "order.mixture",
    "Phase": "order.mixture",
    "Skip": "order.skips",
    "Sequential": "order.sequential",
    "BatchSchedule": "order.schedule",
    "Partition": "order.partition",
    "Plan": "order.partition",
    "OrderSpec": "order.spec",
    "RunLog": "order.runlog",
    "RunStart": "order.runlog",
    "Config": "config",
    "load_config": "config",
    "build_mixture": "config",
    "Blend": "config",
    "open_blend": "config",
    "make_dataloader": "loader",
    "Loader": "loader",
    "SampleDataset": "loader",
    "collate_fn": "collate",
    "batch_digest": "batch.digest",
    "EpochSampler": "samplers",
    "MixtureSampler": "samplers",
    "DistributedSampler": "samplers",
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
