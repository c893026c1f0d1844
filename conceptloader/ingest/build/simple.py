"""A build in one call, as `conceptloader build` does it, for Python."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from conceptloader.errors import ConfigError
from conceptloader.ingest.build.builder import IngestOptions, build_dataset
from conceptloader.ingest.build.complete import Summary
from conceptloader.ingest.place.rules import SpanRules
from conceptloader.ingest.rows.columns import Columns
from conceptloader.ingest.rows.detect import detect_columns
from conceptloader.ingest.rows.inputs import find_sources
from conceptloader.ingest.rows.tokenizer import load_tokenizer
from conceptloader.ingest.rows.vocabulary import load_vocabulary

Path = str | os.PathLike[str]


def build(
    inputs: Path | Sequence[Path],
    out: Path,
    *,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    eos: str | int | None = None,
    append_eos: bool = True,
    vocabularies: Mapping[str, Path | Sequence[str]] | None = None,
    columns: Columns | None = None,
    prefix: str | None = None,
    rules: SpanRules | None = None,
    workers: int = 1,
) -> Summary:
    """Build the dataset `out` from jsonl or parquet files, or go on with a build that was interrupted.

    inputs: files, or directories of files. tokenizer: "bytes", a tokenizer.json or a transformers folder, or for tokens
    as input their vocab_size. eos: token, or id, that ends a document. vocabularies: names of the concepts by track, or
    the file that has them. columns: by default those of the first records. prefix: a template in Jinja over a record's
    columns, of a text that is put in front of its document. rules: which tokens belong to a span. workers: processes;
    above 1, a script needs the usual `if __name__ == "__main__":`.

    Raises: see `conceptloader.ingest.build.builder.build_dataset`.
    """
    if (tokenizer is None) == (vocab_size is None):
        raise ConfigError("build: expected either tokenizer or, for tokens as input, vocab_size")
    if tokenizer is None and isinstance(eos, str):
        raise ConfigError(f"build: eos: found {eos!r}, expected an id, since there is no tokenizer to look it up")
    sources = find_sources([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)
    given, columns = vocabularies or {}, columns or detect_columns(sources, strict=True, prefix=prefix)
    options = IngestOptions(
        columns=columns if prefix is None else replace(columns, prefix=prefix),
        tokenizer=None if tokenizer is None else load_tokenizer(tokenizer, eos),
        vocab_size=vocab_size,
        eos_id=eos if tokenizer is None and not isinstance(eos, str) else None,
        append_eos=append_eos,
        vocabularies={
            track: load_vocabulary(names) if isinstance(names, (str, os.PathLike)) else list(names)
            for track, names in given.items()
        },
        **vars(rules or SpanRules()),
    )
    return build_dataset(sources, out, options, workers=workers)
