"""A batch as text, with its spans and the names of their concepts."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from conceptloader.config import Blend
from conceptloader.errors import ConfigError
from conceptloader.trace.run import Run
from conceptloader.trace.viewer.windows import Samples, Window


class HasBlend(Protocol):
    """A Loader, a SampleDataset."""

    @property
    def blend(self) -> Blend: ...


def decode(batch: Mapping[str, Any], source: HasBlend | Blend, tokenizer: str | None = None) -> list[Window]:
    """The samples of a batch, or the one sample, that `source` (a Loader, a SampleDataset, a Blend) returned.

    They are read again by their numbers: documents and spans are those of the data, not of what a script made of them.

    Args:
        batch: A batch of the loader.
        source: What returned it.
        tokenizer: As `--tokenizer` of the command; by default the copy that the datasets have, or else token ids.

    Returns:
        Texts and spans, a sample each.

    Raises:
        ConfigError: For a batch without sample_index, and if its tokens are not those of the samples of `source`.
    """
    run = Run(blend=source if isinstance(source, Blend) else source.blend)
    arrays = {}
    for name, shaped in (("sample_index", np.atleast_1d), ("input_ids", np.atleast_2d)):
        if name not in batch:
            raise ConfigError("decode", f"no {name} in the batch", "a batch of the loader", f"omit outputs.{name}")
        value = batch[name]
        arrays[name] = shaped(np.asarray(value.detach().cpu() if hasattr(value, "detach") else value))
    samples, windows = Samples(run, tokenizer), []
    for sample, ids in zip(arrays["sample_index"].tolist(), arrays["input_ids"], strict=True):
        window = samples.read(sample)
        known = np.array(window.ids, np.int64)
        if (known != ids[: len(known)])[known >= 0].any():
            expected, fix = "its tokens, as the loader returned them", "pass the loader that made the batch"
            raise ConfigError("decode", f"other tokens than those of sample {sample}", expected, fix)
        windows.append(window)
    return windows
