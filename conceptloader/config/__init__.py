"""Configuration: read it, check it, open what it names.

Open schema.py first: every key, but those of `outputs`, in kernels/arrays.py; then blend.py, what they result in,
and sizes.py, how many samples each dataset has.
"""

from conceptloader.config.blend import Blend, ConfigLike, View, open_blend, present
from conceptloader.config.load import load_config
from conceptloader.config.schema import ConceptOptions, Config, DatasetConfig
from conceptloader.kernels.arrays import LossWeight, Outputs

__all__ = [
    "Blend",
    "ConceptOptions",
    "Config",
    "ConfigLike",
    "DatasetConfig",
    "LossWeight",
    "Outputs",
    "View",
    "load_config",
    "open_blend",
    "present",
]
