"""Token files of other libraries as datasets, in place: only a manifest and tables of documents are written."""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from conceptloader.base.options import options_from
from conceptloader.base.terminal import counted
from conceptloader.errors import ConfigError, InputError
from conceptloader.format.read.kept import keep_tokenizer
from conceptloader.format.spec import layout as fmt
from conceptloader.format.spec.manifest import CREATED_BY, Manifest, Tokenizer
from conceptloader.format.spec.shardtable import FileColumn, Foreign, ShardTable
from conceptloader.format.tools.derived import new_directory, warn_of_roots
from conceptloader.format.write.finalize import write_manifest
from conceptloader.format.write.tables import BlockTable
from conceptloader.ingest.adopt.datatrove import datatrove_file
from conceptloader.ingest.adopt.flat import flat_file
from conceptloader.ingest.adopt.ids import check_ids
from conceptloader.ingest.adopt.megatron import megatron_file
from conceptloader.ingest.adopt.options import AdoptOptions
from conceptloader.ingest.adopt.source import TokenFile, last_token, noted_tokenizers, read_content
from conceptloader.ingest.files import as_paths, check_folder, files_below
from conceptloader.storage.durable import Spool
from conceptloader.storage.sample import file_checksum


class Kind(NamedTuple):
    """suffixes: by which such files are known in a folder.

    files: what follows their name, or prefix, in the names of all files of one. describe: called with that, and of flat
    files with their dtype and document_end.
    """

    suffixes: tuple[str, ...]
    files: tuple[str, ...]
    describe: Callable[..., TokenFile]


KINDS = {
    "megatron": Kind((".idx",), (".bin", ".idx"), megatron_file),
    "datatrove": Kind((".ds",), ("", ".index"), datatrove_file),
    "flat": Kind((".npy", ".u16", ".u32"), ("",), flat_file),
}


def adopt(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    roots: Collection[str] = (),
    **options: Any,
) -> Manifest:
    """Make the dataset `out` of existing token files, one shard each, in the given order; folders sorted by path.

    The files stay where they are and must not change: size and sample of each are checked when it is opened, its index
    by `verify`. They and the whole index identify the tokens, in any copy of the files, and as files that a trainer
    names are read without this. Files outside of the directory that holds `out` need `roots` when the dataset is
    opened. A failure leaves no files.

    Args:
        paths: Prefixes (or either file) of Megatron's .bin/.idx, .ds files of datatrove, flat token files, or folders.
        out: Directory of the dataset, new or empty.
        roots: Directories that will be allowed when it is opened, so that files there need no warning.
        options: Those of `conceptloader adopt --help`, with `_` for `-`.

    Returns:
        The manifest of the new dataset.

    Raises:
        ConfigError: For arguments.
        InputError: For files that are missing, corrupt or not adoptable.
        ReadError: A file cannot be read.
    """
    given = options_from(AdoptOptions, "adopt", options)
    tokenizer, definition = given.facts()
    files = _find_files(as_paths(paths), given.dtype, given.document_end)
    if not given.allow_mixed_tokenizers:
        _check_tokenizers(files, tokenizer, given.tokenizer)
    if not sum(file.tokens for file in files):
        raise InputError(
            files[0].path,
            f"no token in {counted(len(files), 'file')}",
            "at least one token",
            "pass FILEs of which one has tokens",
        )
    for file in files:
        check_ids(file, tokenizer)
        if not given.ignore_loss_mask and os.path.exists(f"{file.path}.loss"):
            fix = (
                "pass --ignore-loss-mask to train on all tokens, or `conceptloader build` records that have the tokens "
            )
            fix += "and a list loss_mask (--field loss_mask:u1)"
            raise InputError(f"{file.path}.loss", "a loss mask, which adopt does not read", "tokens alone", fix)
    with new_directory(out) as working:
        manifest = _assemble(files, working, os.path.abspath(out), tokenizer)
        if definition is not None:
            keep_tokenizer(definition, working)
        write_manifest(manifest, working)
    warn_of_roots(manifest, os.path.abspath(out), roots)
    return manifest


def token_files(path: str) -> list[str]:
    """All files that `path` stands for, indexes included. Raises: see `adopt`."""
    return [found + suffix for kind, found in _expand(path, None) for suffix in KINDS[kind].files]


def _find_files(paths: Sequence[str], dtype: str | None, document_end: int | None) -> list[TokenFile]:
    """Describe all token files that `paths` stand for. Raises: see `adopt`."""
    if not paths:
        raise ConfigError(
            "paths",
            repr(paths),
            "a list of at least one path",
            "pass the files or folders as paths: conceptloader adopt FILE...",
        )
    chosen = [item for path in paths for item in _expand(path, dtype)]
    if len(chosen) > fmt.MAX_SHARDS:
        raise ConfigError(
            "paths",
            f"{len(chosen)} files",
            f"at most {fmt.MAX_SHARDS}",
            "adopt them as several datasets, and name all of these under `datasets`",
        )
    seen: dict[str, str] = {}
    for _, path in chosen:
        real = os.path.realpath(path)
        if real in seen:
            raise ConfigError("paths", f"{path} twice (also as {seen[real]})", "each file once", f"pass {path} once")
        seen[real] = path
    flat = any(found == "flat" for found, _ in chosen)
    for name, value in (("dtype", dtype), ("document_end", document_end)):
        if value is not None and not flat:
            raise ConfigError(name, f"{value!r} for files that say it themselves", f"no {name}", f"omit {name}")
    for found, path in chosen:
        folder = os.path.dirname(path) or "."
        if found == "flat" and any(os.path.exists(os.path.join(folder, name)) for name in (fmt.MANIFEST, fmt.BUILD)):
            raise ConfigError(
                path,
                f"a file of the dataset {folder}",
                "tokens of another library",
                f"use {folder} as it is, or join it with others: conceptloader subset",
            )
    more = {"flat": (dtype, document_end)}
    return [KINDS[found].describe(path, *more.get(found, ())) for found, path in chosen]


def _expand(path: str, dtype: str | None) -> list[tuple[str, str]]:
    """(kind, file or prefix) of each token file. dtype: of what no name says that it has tokens."""
    # Megatron leaves indices of its own in a folder PREFIX, beside PREFIX.idx.
    if os.path.isdir(path) and not os.path.isfile(path + ".idx"):
        return _expand_folder(path, dtype)
    stem, suffix = os.path.splitext(path)
    prefix = stem if suffix in KINDS["megatron"].files else path
    if suffix in KINDS["datatrove"].suffixes:
        return [("datatrove", path)]
    if os.path.exists(prefix + ".idx"):
        return [("megatron", prefix)]
    if (suffix in KINDS["flat"].suffixes or dtype is not None) and os.path.exists(path):
        return [("flat", path)]
    if not any(os.path.exists(file) for file in (path, prefix + ".bin")):
        kinds = "a folder of token files, PREFIX of Megatron's PREFIX.bin and .idx, a .ds or a .npy"
        raise ConfigError(
            path, "nothing there", kinds, f"run `ls {path}`: the path may be misspelled, or its disk not mounted"
        )
    raise ConfigError(
        path,
        "neither PREFIX.bin with PREFIX.idx (Megatron), nor a .ds (datatrove), nor a .npy",
        "a file of one of these kinds",
        "pass --dtype TYPE if it holds token ids and nothing else; of text: conceptloader build",
    )


def _expand_folder(folder: str, dtype: str | None) -> list[tuple[str, str]]:
    """The files in a folder. Those in folders below it are an error, since datatrove would skip them."""
    known = {suffix: name for name, one in KINDS.items() for suffix in one.suffixes}
    paths = files_below(folder)
    if dtype is not None and not any(path.endswith(".idx") for path in paths):  # else a .bin belongs to an .idx
        known[".bin"] = "flat"
    files = [path for path in paths if os.path.splitext(path)[1] in known]
    here = [path for path in files if os.path.dirname(path) == folder]
    kinds = sorted({known[os.path.splitext(path)[1]] for path in here})
    if len(kinds) > 1:
        raise ConfigError(
            folder, f"files of {', '.join(kinds)} in it", "files of one kind", "pass the files that are meant"
        )
    if len(here) < len(files):
        below = next(path for path in files if path not in here)
        raise ConfigError(
            folder, f"{below} below it", "files in it only", "pass each folder to adopt as a path of its own"
        )
    if not files:
        wanted = "Megatron, datatrove or .npy files"
        fix = "pass the folder of the files, or --dtype TYPE for a .bin of tokens and nothing else"
        raise ConfigError(folder, f"no {wanted} in it", "at least one such file", fix)
    alone = [path for path in paths if path.endswith(".bin") and path[:-4] + ".idx" not in {*paths}]
    masks = [path for path in files if "mask" in os.path.basename(path).lower()]
    borders = [path for path in paths if path.endswith((".csv.gz", ".csv"))]
    others = {"megatron": (alone, "has no .idx")}.get(kinds[0]) or (
        (masks, "may hold masks, not tokens") if masks else (borders, "may hold boundaries of documents: not read")
    )
    if others[0]:
        some = next((path for path in files if path not in masks), "FILE")
        fix = f"complete the folder, or pass its tokens: conceptloader adopt {some} ..."
        fix += " --document-end ID" * (kinds[0] == "flat")
        raise ConfigError(folder, f"{others[0][0]}, which {others[1]}", "files of tokens that belong together", fix)
    check_folder(folder, paths, files)
    return [(kinds[0], os.path.splitext(path)[0] if kinds[0] == "megatron" else path) for path in files]


def _check_tokenizers(files: Sequence[TokenFile], tokenizer: Tokenizer | None, source: Any) -> None:
    """source: the file, folder or hub name that it is from, by which files may name it."""
    names = {} if tokenizer is None or tokenizer.name.startswith("unnamed-") else {tokenizer.name: "as you say"}
    for file in files:
        if file.tokenizer and not (isinstance(source, str) and _called(file.tokenizer) == _called(source)):
            names.setdefault(file.tokenizer, file.path)
    if len(names) > 1:
        found = ", ".join(f"{name!r} ({where})" for name, where in list(names.items())[:4])
        raise InputError(
            "tokenizer",
            f"{len(names)} of them: {found}",
            "the same tokenizer in all files",
            "adopt the files as separate datasets or, if these are names of the same tokenizer, pass "
            "--allow-mixed-tokenizers",
        )


def _called(source: str) -> str:
    """The name of a tokenizer in a path or on a hub: gpt2 for gpt2, openai/gpt2, models/gpt2/tokenizer.json."""
    return os.path.basename(os.path.abspath(source).removesuffix("/tokenizer.json"))


def _check_ends(files: Sequence[TokenFile], documents: Sequence[int]) -> None:
    """Raise InputError if the token that ends documents is nowhere."""
    ended = [(file, count) for file, count in zip(files, documents, strict=True) if file.document_end is not None]
    if any(count > 1 or last_token(file) == file.document_end for file, count in ended) or not ended:
        return
    raise InputError(
        ended[0][0].path,
        f"no token {ended[0][0].document_end} in {counted(len(ended), 'file')}",
        "this token at the end of each document",
        "pass the id of the token that ends documents (--document-end ID), or omit --document-end",
    )


def _assemble(files: Sequence[TokenFile], working: str, out: str, tokenizer: Tokenizer | None) -> Manifest:
    """Write the tables of documents and describe everything."""
    names = [f"{shard:0{max(5, len(str(len(files) - 1)))}d}" for shard in range(len(files))]
    layouts = [fmt.make_layout(token_type, {}, []) for token_type in dict.fromkeys(file.token_type for file in files)]
    types = [layout.token_type for layout in layouts]
    tables = [write_documents(os.path.join(working, name), file) for name, file in zip(names, files, strict=True)]
    _check_ends(files, [documents for documents, _ in tables])
    # Behind the tables, for which some files are read: what was read is what the checksums are of.
    contents = [read_content(file) for file in files]
    table = ShardTable(
        path=names,
        tokens=np.array([file.tokens for file in files], np.int64),
        layout=np.array([types.index(file.token_type) for file in files], np.int64),
        offset=np.array([file.offset for file in files], np.int64),
        documents=np.array([documents for documents, _ in tables], np.int64),
        token_checksum=[content.tokens for content in contents],
        files={
            "stream.bin": FileColumn(
                np.array([file.found.st_size for file in files], np.int64),
                [content.checksum for content in contents],
                [content.sample for content in contents],
                [os.path.relpath(file.path, out) for file in files],
            ),
            "documents.bin": FileColumn(
                np.array([-1 if spool is None else spool.size for _, spool in tables], np.int64),
                [None if spool is None else spool.checksum for _, spool in tables],
                [None if spool is None else spool.sample for _, spool in tables],
            ),
        },
        tracks={},
        foreign=[
            Foreign(
                kind=file.kind,
                mtime_ns=0,  # a time of modification would identify one copy
                index=os.path.relpath(file.index, out) if file.index else None,
                index_checksum=file_checksum(file.index) if file.index else None,
            )
            for file in files
        ],
    )
    return Manifest(
        mode="token-stream",
        created_by=CREATED_BY,
        tokenizer=tokenizer,
        block_tokens=fmt.BLOCK_TOKENS,
        layouts=tuple(layouts),
        tracks={},
        shards=table,
        extra=noted_tokenizers(files),
    )


def write_documents(prefix: str, file: TokenFile) -> tuple[int, Spool | None]:
    """Write PREFIX.documents.bin. Returns: (documents, the file); (0, None) if a file says nothing of its documents."""
    if file.starts is None:
        return 0, None
    count = 0
    with ExitStack() as spools:
        spool = spools.enter_context(Spool(f"{prefix}.documents.bin"))
        blocks = BlockTable(f"{prefix}.documents.blocks", fmt.BLOCK_TOKENS, spools)
        for starts in file.starts():
            if not count and len(starts) and starts[0] != 0:
                raise InputError(
                    file.index,
                    f"a first document at token {starts[0]}",
                    "the first document at token 0",
                    f"the index is corrupt: copy {file.index} again, or run Megatron's preprocess_data.py again",
                )
            spool.write(np.ascontiguousarray(starts, fmt.OFFSET))
            blocks.add(starts)
            count += len(starts)
        if file.tokens and not count:
            raise InputError(
                file.index,
                f"{file.tokens} tokens and no document",
                "at least one document",
                f"the index is corrupt: copy {file.index} again, or run Megatron's preprocess_data.py again",
            )
        spool.write(np.array([file.tokens], fmt.OFFSET))
        blocks.finish(file.tokens, spool)
        spool.commit()
    return count, spool
