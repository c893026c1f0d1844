"""Tracing a run: what a step contains, past or future; where a document or concept is seen.

Open run.py first, then past.py, then samples.py; tables.py is what SQL asks.
"""

from conceptloader.trace.locate import Sighting, locate_documents, locate_where
from conceptloader.trace.past import open_run
from conceptloader.trace.ranges import Member
from conceptloader.trace.run import Run
from conceptloader.trace.samples import DocumentPart, SampleTrace, SpanPart, trace_sample, trace_step
from conceptloader.trace.tables import query

__all__ = [
    "DocumentPart",
    "Member",
    "Run",
    "SampleTrace",
    "Sighting",
    "SpanPart",
    "locate_documents",
    "locate_where",
    "open_run",
    "query",
    "trace_sample",
    "trace_step",
]
