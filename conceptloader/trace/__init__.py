"""Tracing a run: what a step contains, past or future; where a document or concept is seen.

Open run.py first, then past.py, then samples.py; tables.py is what SQL asks.
"""

from conceptloader.trace.locate import (
    ConceptSeen,
    DocumentSeen,
    excluded_since,
    locate_concept,
    locate_document,
    locate_where,
)
from conceptloader.trace.past import open_run
from conceptloader.trace.ranges import Member
from conceptloader.trace.run import Run
from conceptloader.trace.samples import DocumentPart, SampleTrace, SpanPart, trace_sample, trace_step
from conceptloader.trace.tables import query

__all__ = [
    "ConceptSeen",
    "DocumentPart",
    "DocumentSeen",
    "Member",
    "Run",
    "SampleTrace",
    "SpanPart",
    "excluded_since",
    "locate_concept",
    "locate_document",
    "locate_where",
    "open_run",
    "query",
    "trace_sample",
    "trace_step",
]
