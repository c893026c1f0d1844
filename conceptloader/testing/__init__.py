"""Test kit: synthetic datasets, a resume oracle.

Open corpora.py first.
"""

from conceptloader.testing.corpora import RawDocument, random_documents, sample_corpus, write_dataset
from conceptloader.testing.oracle import Layout, check_resume, global_steps

__all__ = [
    "Layout",
    "RawDocument",
    "check_resume",
    "global_steps",
    "random_documents",
    "sample_corpus",
    "write_dataset",
]
