"""Token files of other libraries as datasets, in place: only a manifest and tables of documents are written."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from conceptloader import __version__
from conceptloader.errors import InputError
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import Manifest, Tokenizer
from conceptloader.format.spec.shardtable import FileColumn, Foreign, ShardTable
from conceptloader.format.tools.derived import new_directory
from conceptloader.format.tools.verify import file_checksum
from conceptloader.format.write.finalize import write_manifest
from conceptloader.format.write.tables import BlockTable
from conceptloader.ingest.adopt.find import find_files
from conceptloader.ingest.adopt.source import TokenFile, read_content
from conceptloader.storage.durable import Spool


def adopt(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    kind: str = "auto",
    dtype: str | None = None,
    document_end: int | None = None,
    tokenizer: Tokenizer | None = None,
    allow_mixed_tokenizers: bool = False,
    full: bool = False,
) -> Manifest:
    """Make the dataset `out` of existing token files, one shard each, in the given order; folders sorted by path.

    paths: prefixes (or either file) of Megatron's .bin/.idx, .ds files of datatrove, flat token files, or folders.
    kind: "auto", "megatron", "datatrove" or "flat". dtype, document_end: for flat files, see `flat_file`. Tokens are
    read only with document_end, and of types int8 and int16. tokenizer: what the token ids mean; kept in the manifest.
    allow_mixed_tokenizers: accept files whose notes name different tokenizers. full: read all tokens for their
    checksums, so that the stream fingerprint is that of the tokens alone; otherwise it is that of a sample of each
    file and its time of modification. Files of up to 32 KiB are always read whole.

    The files stay where they are and must not change: size, time of modification and sample of each are checked when
    it is opened, its index by `verify`. Files outside of the directory that holds `out` need `roots` when the dataset
    is opened. A failure leaves nothing behind.

    Raises: ConfigError for arguments, InputError for files that are missing, damaged or not adoptable, ReadError.
    """
    files = find_files([os.fspath(path) for path in paths], kind, dtype, document_end)
    _check_tokenizers(files, tokenizer, allow_mixed_tokenizers)
    if not sum(file.tokens for file in files):
        raise InputError(f"{files[0].path}: found no token in {len(files)} files, expected some; check the paths")
    with new_directory(out) as working:
        manifest = _assemble(files, working, os.path.abspath(out), tokenizer, full)
        write_manifest(manifest, working)
    return manifest


def _check_tokenizers(files: Sequence[TokenFile], tokenizer: Tokenizer | None, mixed: bool) -> None:
    names = {} if tokenizer is None else {tokenizer.name: "as you say"}
    for file in files:
        if file.tokenizer:
            names.setdefault(file.tokenizer, file.path)
    if len(names) > 1 and not mixed:
        found = ", ".join(f"{name!r} ({where})" for name, where in list(names.items())[:4])
        raise InputError(
            f"tokenizer: found {len(names)} of them: {found}, expected one; adopt the files as separate datasets, or, "
            "if these are names of the same tokenizer, say so: --allow-mixed-tokenizers"
        )


def _assemble(files: Sequence[TokenFile], working: str, out: str, tokenizer: Tokenizer | None, full: bool) -> Manifest:
    """Write the tables of documents and describe everything."""
    names = [f"{shard:0{max(5, len(str(len(files) - 1)))}d}" for shard in range(len(files))]
    layouts = [fmt.make_layout(token_type, {}, []) for token_type in dict.fromkeys(file.token_type for file in files)]
    types = [layout.token_type for layout in layouts]
    tables = [write_documents(os.path.join(working, name), file) for name, file in zip(names, files, strict=True)]
    # Behind the tables, for which some files are read: what was read is what the checksums are of.
    contents = [read_content(file, full) for file in files]
    table = ShardTable(
        path=names,
        tokens=np.array([file.tokens for file in files], np.int64),
        layout=np.array([types.index(file.token_type) for file in files], np.int64),
        offset=np.array([file.offset for file in files], np.int64),
        documents=np.array([table.documents for table in tables], np.int64),
        token_checksum=[content.tokens for content in contents],
        files={
            "stream.bin": FileColumn(
                np.array([file.size for file in files], np.int64),
                [content.checksum for content in contents],
                [os.path.relpath(file.path, out) for file in files],
                [content.sample for content in contents],
            ),
            "documents.bin": FileColumn(
                np.array([table.size for table in tables], np.int64),
                [table.checksum for table in tables],
                sample=[table.sample for table in tables],
            ),
        },
        foreign=[
            Foreign(
                kind=file.kind,
                mtime_ns=file.mtime_ns,
                index=os.path.relpath(file.index, out) if file.index else None,
                index_checksum=file_checksum(file.index) if file.index else None,
                content=content.sample,
            )
            for file, content in zip(files, contents, strict=True)
        ],
    )
    noted = sorted({file.tokenizer for file in files if file.tokenizer})
    return Manifest(
        mode="token-stream",
        created_by=f"conceptloader {__version__}",
        tokenizer=tokenizer,
        block_tokens=fmt.BLOCK_TOKENS,
        layouts=tuple(layouts),
        tracks={},
        shards=table,
        extra={"adopted_tokenizers": noted} if noted else {},
    )


@dataclass(frozen=True, kw_only=True)
class DocumentTable:
    """A documents.bin that was written; as it is here if a file says nothing of its documents."""

    documents: int = 0
    size: int = -1
    checksum: str | None = None
    sample: str | None = None


def write_documents(prefix: str, file: TokenFile) -> DocumentTable:
    """Write PREFIX.documents.bin."""
    if file.starts is None:
        return DocumentTable()
    spool, blocks = Spool(f"{prefix}.documents.bin"), BlockTable(f"{prefix}.documents.blocks", fmt.BLOCK_TOKENS)
    count = 0
    try:
        for starts in file.starts():
            if not count and len(starts) and starts[0] != 0:
                raise InputError(f"{file.index}: found the first document at token {starts[0]}, expected it at 0")
            spool.write(np.ascontiguousarray(starts, fmt.OFFSET))
            blocks.add(starts)
            count += len(starts)
        if file.tokens and not count:
            raise InputError(f"{file.index}: found {file.tokens} tokens and no document, expected at least one")
        spool.write(np.array([file.tokens], fmt.OFFSET))
        blocks.finish(file.tokens, spool)
        spool.commit()
    finally:
        spool.discard()
        blocks.discard()
    return DocumentTable(documents=count, size=spool.size, checksum=spool.checksum, sample=spool.sample)
