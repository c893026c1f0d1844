"""Questions about a run: what was, or will be, in a step; when is a document or a concept seen; was it as planned."""

from .audit import Difference, Report, audit
from .record import Launch, Line, Recorder, read_record
from .run import Member, Run, open_run
from .samples import DocumentPart, SampleTrace, SpanPart, trace_sample, trace_step
from .when import ConceptSeen, DocumentSeen, when_concept, when_document

__all__ = [
    "ConceptSeen",
    "Difference",
    "DocumentPart",
    "DocumentSeen",
    "Launch",
    "Line",
    "Member",
    "Recorder",
    "Report",
    "Run",
    "SampleTrace",
    "SpanPart",
    "audit",
    "open_run",
    "read_record",
    "trace_sample",
    "trace_step",
    "when_concept",
    "when_document",
]
