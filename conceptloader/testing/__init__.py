"""Test kit: synthetic datasets, a resume oracle, plain batches.

conceptloader.testing.strategies has hypothesis strategies.

Open corpora.py first.
"""

from conceptloader.testing.corpora import RawDocument, random_documents, sample_corpus, write_dataset
from conceptloader.testing.oracle import Layout, check_resume, global_steps
from conceptloader.testing.plain import PlainReader
from conceptloader.testing.sparse import sparse_dataset

__all__ = [
    "Layout",
    "PlainReader",
    "RawDocument",
    "check_resume",
    "global_steps",
    "random_documents",
    "sample_corpus",
    "sparse_dataset",
    "write_dataset",
]
