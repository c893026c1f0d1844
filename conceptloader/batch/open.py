"""From an open configuration to the reader of its batches."""

import logging

from conceptloader.batch.compiled import CompiledReader
from conceptloader.batch.layout import BatchLayout
from conceptloader.batch.plain import ReferenceReader
from conceptloader.batch.reader import Reader
from conceptloader.blend import Blend
from conceptloader.errors import ConfigError

logger = logging.getLogger(__name__)


def batch_layout(blend: Blend) -> BatchLayout:
    """The arrays of a configuration's batches.

    Raises ConfigError if `seq_len` is missing, or a track does not fit the shapes asked for.
    """
    config = blend.config
    if config.seq_len is None:
        raise ConfigError("seq_len: missing, expected the number of tokens of a sample in a batch")
    return BatchLayout.of(blend.views, config.seq_len, config.outputs, config.concepts)


def open_reader(blend: Blend, dp_rank: int = 0) -> Reader:
    """A reader of the samples of `blend`, with the engine that its configuration names. dp_rank: for messages.

    The compiled engine reads through descriptors: with a dataset whose source has none, the reference engine reads all.
    """
    layout = batch_layout(blend)
    # Members of an earlier sequence length are part of the order, but none of their samples lies ahead.
    views = [
        None if view is None or view.member.seq_len not in (None, layout.seq_len) else view for view in blend.views
    ]
    remote = [view.name for view in views if view is not None and view.dataset.files.descriptors is None]
    if remote:
        logger.info("loader: reads %s from object stores, with the reference engine", ", ".join(remote))
    if remote or blend.config.loader.engine == "reference":
        return ReferenceReader(blend.order, views, layout, dp_rank)
    return CompiledReader(blend.order, views, layout, dp_rank)
