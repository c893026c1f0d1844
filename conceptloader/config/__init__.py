"""Configuration: read it, check it, open what it names."""

from .build import Blend, ConfigLike, View, build_mixture, open_blend
from .load import load_config
from .schema import (
    ConceptOptions,
    Config,
    DatasetConfig,
    LoaderConfig,
    Outputs,
    PhaseConfig,
    QuarantineConfig,
    SkipConfig,
)

__all__ = [
    "Blend",
    "ConceptOptions",
    "Config",
    "ConfigLike",
    "DatasetConfig",
    "LoaderConfig",
    "Outputs",
    "PhaseConfig",
    "QuarantineConfig",
    "SkipConfig",
    "View",
    "build_mixture",
    "load_config",
    "open_blend",
]
