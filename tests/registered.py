"""A codec that is registered for a while."""

from contextlib import contextmanager

import conceptloader as cl
from conceptloader.format.spec import codecs


@contextmanager
def registered(name, codec):
    cl.register_codec(name, codec)
    try:
        yield
    finally:
        del codecs._REGISTERED[name]
