"""How many samples an epoch of a dataset has: its windows, documents or packs, of what a configuration reads of it."""

from conceptloader.config.packing import Packing, Packs
from conceptloader.config.schema import Config
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import Dataset
from conceptloader.order.progress.spec import Member, PackingRule


def member_of(name: str, ds: Dataset, config: Config) -> Member:
    """A dataset as the order draws from it, with the number of its samples.

    Raises ConfigError, within its key, for a part of it without one.
    """
    try:
        split = config.datasets[name].split
        token_range = (0, ds.num_tokens) if split is None else ds.split(*split)
        if config.split_documents is not None:
            token_range = ds.split_documents(*config.split_documents, token_range)
        seq_len, packing = config.seq_len, None
        if ds.mode == "document" and config.packing is None:
            seq_len, windows = None, ds.documents_before(token_range[1]) - ds.documents_before(token_range[0])
        elif seq_len is None:
            raise ConfigError(
                "seq_len",
                "nothing",
                "the number of tokens of a window or a pack",
                "set seq_len in the configuration",
            )
        elif config.packing is not None:
            bins, overflow = config.packing.rule
            packing = PackingRule(bins=bins, overflow=overflow)
            windows = len(Packs(ds, Packing(seq_len=seq_len, **vars(packing)), token_range))
        else:
            windows = len(ds.windows(seq_len, token_range, tracks=()))
    except ConfigError as error:
        raise error.within(f"datasets.{name}") from error
    return Member(
        dataset=name,
        seq_len=seq_len,
        windows=windows,
        stream_fingerprint=ds.stream_fingerprint,
        token_range=token_range,
        tracks_fingerprint=ds.tracks_fingerprint,
        packing=packing,
    )
