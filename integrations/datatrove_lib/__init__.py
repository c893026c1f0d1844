"""Building datasets with datatrove's executors, on one machine or a cluster.

`ConceptBuild` builds the shards of a task; `ConceptBuildFinish` completes the dataset in a pipeline of one task that
depends on it.
This package is not called datatrove, so that neither shadows the other.

Open build.py first.
"""

from conceptloader.base.packages import public

_NAMES = {
    "build": "ConceptBuild ConceptBuildFinish",
}
__all__, __getattr__ = public(__name__, _NAMES)
