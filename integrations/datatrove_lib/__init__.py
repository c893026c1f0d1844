"""Building datasets with datatrove's executors, on one machine or a cluster: one shard per task.

`ConceptStreamWriter` is the last step of a pipeline; `ConceptStreamFinalize` completes the dataset in a pipeline of one
task that depends on it.
`ConceptIndexWriter` and `ConceptIndexJoin` do the same for its concept index. This package is not called datatrove,
so that neither shadows the other.

Open writer.py first.
"""

from conceptloader.base.packages import public

_NAMES = {
    "index": "ConceptIndexJoin ConceptIndexWriter",
    "writer": "ConceptStreamFinalize ConceptStreamWriter",
}
__all__, __getattr__ = public(__name__, _NAMES)
