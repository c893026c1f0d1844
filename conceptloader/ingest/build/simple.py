"""A build in one call, as `conceptloader build` does it, for Python."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from conceptloader.errors import ConfigError
from conceptloader.ingest.align.rules import SpanAlignment
from conceptloader.ingest.build.builder import TOKEN_DTYPES, IngestOptions, build_dataset
from conceptloader.ingest.build.complete import Summary
from conceptloader.ingest.records.chat import MADE, ChatRules
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.detect import detect_columns, with_labels
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.ingest.records.lines import MAX_LINE_BYTES
from conceptloader.ingest.records.special_tokens import CONTROL, ERROR, TEXT
from conceptloader.ingest.records.tokenizer import FileTokenizer, find_token, load_tokenizer
from conceptloader.ingest.records.vocabulary import load_vocabulary

Path = str | os.PathLike[str]


def build(
    inputs: Path | Sequence[Path],
    out: Path,
    *,
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    eos: str | int | None = None,
    append_eos: bool = True,
    bos: str | int | None = None,
    special_tokens: str | None = None,
    vocabularies: Mapping[str, Path | Sequence[str]] | None = None,
    scores: Mapping[str, str] | None = None,
    columns: Columns | None = None,
    rules: SpanAlignment | None = None,
    chat: ChatRules | None = None,
    encoding: str = "auto",
    mode: str | None = None,
    token_dtype: str | None = None,
    shard_input_bytes: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    workers: int = 1,
    task: tuple[int, int] | None = None,
    unique_ids: bool = False,
    overwrite: bool = False,
    on_bad: Callable[[str, str, str], None] | None = None,
) -> Summary:
    """Build the dataset `out` from records, as `conceptloader build` does, or resume one that was interrupted.

    Args:
        inputs: Files, or directories of files.
        out: Directory of the dataset.
        tokenizer: "bytes", a tokenizer.json or a transformers folder, or for tokens as input their vocab_size.
        vocab_size: For tokens as input, how many ids there are.
        eos: Token, or id, that ends a document.
        append_eos: Whether the eos ends each document.
        bos: That begins it, None for none.
        special_tokens: What text is that spells a special token: "text", "control" (that token) or "error"; None: text,
            unless most of the first documents begin or end with one, which raises.
        vocabularies: Names of the concepts by track, or the file that has them.
        scores: By track, the type "f2" or "f4" of the scores of concepts.
        columns: By default those of the first records (`detect_columns`).
        rules: Which tokens belong to a span.
        chat: How conversations are rendered, see `load_rules`; `columns` then says what else their records have.
        encoding: How tracks are stored: "auto", "dense" or "spans".
        mode: Of the dataset: "stream-with-metadata", "token-stream" or "document"; by default from the columns.
        token_dtype: As which tokens are stored, uint16 or uint32, by default the smaller one that holds the vocabulary.
        shard_input_bytes: Input of a shard, in bytes as stored; by default for about 64 shards of 64 MiB to 16 GiB.
        max_line_bytes: Longest line of a text file, in bytes.
        workers: Processes; above 1, a script needs the usual `if __name__ == "__main__":`.
        task: (number, tasks): write only the shards of this one of several tasks, which may run on other machines, and
            no manifest. A call without it completes the dataset.
        unique_ids: Raise if a document has no id, or that of another one.
        overwrite: Replace the dataset or the build in `out`, once the new one is complete.
        on_bad: Called with (file, place, problem) for records that cannot be ingested, which are skipped then.

    Returns:
        What was built, and what was lost.

    Raises:
        ConfigError: An option is wrong.
        InputError: A record cannot be ingested; see `conceptloader.ingest.build.builder.build_dataset`.
    """
    if (tokenizer is None) == (vocab_size is None):
        raise ConfigError(
            "build",
            f"{'neither' if tokenizer is None else 'both'} of tokenizer and vocab_size",
            "either tokenizer or, for tokens as input, vocab_size",
            "pass tokenizer for text, vocab_size for tokens",
        )
    if token_dtype is not None and token_dtype not in TOKEN_DTYPES:
        raise ConfigError(
            "build: token_dtype",
            repr(token_dtype),
            f"one of {', '.join(TOKEN_DTYPES)}",
            "omit token_dtype, or pass one of these",
        )
    if tokenizer is None and isinstance(eos, str):
        raise ConfigError(
            "build: eos",
            repr(eos),
            "an id, since there is no tokenizer to look it up",
            "pass eos as an id, or a tokenizer",
        )
    sources = find_sources([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)
    loaded = None if tokenizer is None else load_tokenizer(tokenizer, eos, ends=append_eos)
    if columns is None:
        strict = on_bad is None and chat is None
        columns = detect_columns(sources, max_line_bytes=max_line_bytes, strict=strict)
    named = {
        track: load_vocabulary(names) if isinstance(names, (str, os.PathLike)) else list(names)
        for track, names in (vocabularies or {}).items()
    }
    options = IngestOptions(
        columns=columns,
        tokenizer=loaded,
        vocab_size=vocab_size,
        eos_id=eos if tokenizer is None and not isinstance(eos, str) else None,
        append_eos=append_eos,
        eos_twice=eos is not None,
        special_tokens=special_tokens,
        bos=find_token(loaded, None if bos is None else str(bos), "bos"),
        vocabularies=named,
        scores=scores or {},
        **vars(rules or SpanAlignment()),
        encoding=encoding,
        mode=mode,
        token_type=None if token_dtype is None else TOKEN_DTYPES[token_dtype],
        shard_input_bytes=shard_input_bytes,
        max_line_bytes=max_line_bytes,
        unique_ids=unique_ids,
    )
    options = with_chat(options, chat)
    options = replace(options, vocabularies=with_labels(named, sources, options.columns))
    return build_dataset(sources, out, options, workers=workers, task=task, overwrite=overwrite, on_bad=on_bad)


def with_chat(options: IngestOptions, chat: ChatRules | None) -> IngestOptions:
    """The same for conversations, if these are any: their template ends turns, by the eos that the tokenizer has."""
    if chat is None:
        return options
    if options.special_tokens == TEXT:
        fix = "omit --special-tokens, or pass control, which makes it these tokens"
        raise ConfigError("special_tokens", f"{TEXT!r} for conversations", f"{ERROR!r} or {CONTROL!r}", fix)
    columns = replace(options.columns, **MADE, labels=None, attention_mask=None)
    tokenizer, specials = options.tokenizer, dict(chat.specials)
    if "eos_token" in specials and isinstance(tokenizer, FileTokenizer):
        specials["eos_token"] = tokenizer.name_of(tokenizer.eos_id) or specials["eos_token"]
    chat = replace(chat, specials=specials, append_eos=options.append_eos)
    rule = options.special_tokens or ERROR
    return replace(options, columns=columns, chat=chat, special_tokens=rule, mode=options.mode or "document")
