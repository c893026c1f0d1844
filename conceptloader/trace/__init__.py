"""Tracing a run: what a step contains, past or future; where a document or concept is seen; whether it went as planned.

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
from conceptloader.trace.record import BatchRecorder, Launch, Line, read_record
from conceptloader.trace.replay import Difference, Report, audit
from conceptloader.trace.run import Run
from conceptloader.trace.samples import DocumentPart, SampleTrace, SpanPart, trace_sample, trace_step
from conceptloader.trace.tables import query

__all__ = [
    "BatchRecorder",
    "ConceptSeen",
    "Difference",
    "DocumentPart",
    "DocumentSeen",
    "Launch",
    "Line",
    "Member",
    "Report",
    "Run",
    "SampleTrace",
    "SpanPart",
    "audit",
    "excluded_since",
    "locate_concept",
    "locate_document",
    "locate_where",
    "open_run",
    "query",
    "read_record",
    "trace_sample",
    "trace_step",
]
