"""Building datasets with datatrove's executors, on one machine or a cluster: one shard per task.

`ConceptStreamWriter` is the last step of a pipeline; `ConceptStreamFinalize` completes the dataset in a pipeline of one
task that depends on it. `ChunkedBuild` has the stages for documents whose chunks are in other files.
`ConceptIndexWriter` and `ConceptIndexJoin` do the same for its concept index, `SelectWriter` and `SelectJoin` for
views, `TraceWriter` or `ExposureWriter` and `TableJoin` for tables. This package is not called datatrove, lest one
shadow the other.

Open writer.py first.
"""

from typing import Any

from conceptloader.base.packages import public

_PUBLIC = {
    "ConceptStreamWriter": "writer",
    "ConceptStreamFinalize": "writer",
    "ChunkedBuild": "chunks",
    "ConceptIndexWriter": "index",
    "ConceptIndexJoin": "index",
    "SelectWriter": "answers",
    "SelectJoin": "answers",
    "TraceWriter": "answers",
    "ExposureWriter": "answers",
    "TableJoin": "answers",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    return public(__name__, _PUBLIC, name)
