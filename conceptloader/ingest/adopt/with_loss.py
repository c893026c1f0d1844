"""datatrove's token files together with their loss masks, NAME.ds.loss, a byte for each token: a copy, not in place.

A token file of another library has no room for a field, so that its tokens are written once more, with `loss_mask`.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.kept import keep_tokenizer
from conceptloader.format.spec.columns import Ints
from conceptloader.format.spec.manifest import Manifest, Tokenizer
from conceptloader.format.spec.options import BuildOptions
from conceptloader.format.write.build import create_writer
from conceptloader.format.write.finalize import finalize
from conceptloader.ingest.adopt.datatrove import COPY
from conceptloader.ingest.adopt.source import IndexFile, TokenFile, documents_of, noted_tokenizers, stat_file
from conceptloader.storage.lock import build_lock


def copy_with_loss(
    files: Sequence[TokenFile], out: str | os.PathLike[str], tokenizer: Tokenizer | None, definition: bytes | None
) -> Manifest:
    """The dataset `out`, one shard for each file; what was interrupted is resumed. Raises: see `adopt`."""
    facts = []
    for file in files:
        if file.kind != "datatrove":
            raise ConfigError(
                "loss_mask",
                f"{file.path}, of kind {file.kind}",
                ".ds files of datatrove",
                "omit --loss-mask, or run `conceptloader adopt` on these files alone",
            )
        masks = stat_file(f"{file.path}.loss", "adopt without the loss masks, or tokenize with save_loss_metadata=True")
        if masks.st_size != file.tokens:
            raise InputError(
                f"{file.path}.loss", f"{masks.st_size} bytes", f"a byte for each of {file.tokens} tokens", COPY
            )
        facts.append([[os.path.abspath(file.path), one.st_size, one.st_mtime_ns] for one in (file.found, masks)])
    options = BuildOptions(
        mode="token-stream",
        tokenizer=tokenizer,
        token_type=max(file.token_type for file in files),
        fields={"loss_mask": "u1"},
        extra=noted_tokenizers(files),
    )
    with build_lock(os.path.abspath(out)):
        build = create_writer(out, options, inputs=facts, plan=[os.path.basename(file.path) for file in files])
        if definition is not None:
            keep_tokenizer(definition, build.path)
        for number, file in enumerate(files):
            if not build.is_finished(number):
                with build.shard(number) as shard:
                    for tokens, offsets, mask in _documents(file):
                        shard.add_documents(tokens, offsets, {}, [""] * (len(offsets) - 1), {"loss_mask": mask})
        return finalize(out)


def _documents(file: TokenFile) -> Iterator[tuple[NDArray[Any], Ints, NDArray[Any]]]:
    """(tokens, offsets, loss mask) of some documents after the other."""
    with IndexFile(f"{file.path}.loss") as loss:
        for first, tokens, offsets in documents_of(file):
            mask = loss.array("u1", 0, first, first + len(tokens))
            if mask.max(initial=0) > 1:
                raise InputError(f"{file.path}.loss", f"a byte of {mask.max()}", "0 or 1 for each token", COPY)
            yield tokens, offsets, mask
