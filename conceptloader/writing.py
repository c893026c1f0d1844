"""For authors of writers: datasets from documents that code makes, and the options of builds."""

from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.format.spec.options import BuildOptions, TrackOptions
from conceptloader.format.write.build import create_writer, open_writer
from conceptloader.format.write.finalize import finalize

__all__ = [
    "BuildOptions",
    "Tokenizer",
    "TrackOptions",
    "create_writer",
    "finalize",
    "open_writer",
]
