"""A codec that is registered for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import conceptloader as cl
from conceptloader.format.spec import codecs


@contextmanager
def registered(name: str, codec: codecs.Codec) -> Iterator[None]:
    cl.register_codec(name, codec)
    try:
        yield
    finally:
        del codecs._REGISTERED[name]
