"""The tokenizer that a dataset keeps next to its tokens, to show and annotate them as text; training never reads it."""

import hashlib
import os
import re
from collections.abc import Iterator
from itertools import islice

from conceptloader.format.read.files import Files
from conceptloader.format.spec import layout as fmt
from conceptloader.storage.durable import write_file
from conceptloader.storage.reads import read_file

_OWN_NAME = re.compile("tokenizers-[0-9a-f]{16}")


def own_name(definition: bytes) -> str:
    """The name of a tokenizer.json in a manifest, which says what is in it."""
    return f"tokenizers-{hashlib.blake2b(definition, digest_size=8).hexdigest()}"


def is_own_name(name: str) -> bool:
    return _OWN_NAME.fullmatch(name) is not None


def keep_tokenizer(definition: bytes, directory: str) -> None:
    """Write it into the directory of a new dataset."""
    write_file(os.path.join(directory, fmt.TOKENIZER), definition, exclusive=True)


def kept_tokenizers(files: Files) -> Iterator[tuple[str, bytes]]:
    """(path, content) of the copies next to the dataset, then next to its tokens."""
    for directory in dict.fromkeys((files.roots.directory, os.path.dirname(files.path("stream.bin", 0)))):
        # Some are hidden: docs/format.md.
        for name in (fmt.TOKENIZER, f".{fmt.TOKENIZER}"):
            path = os.path.join(directory, name)
            if os.path.exists(path):
                yield path, read_file(path, 1 << 30)


def copy_tokenizer(files: Files, directory: str) -> None:
    """Keep that of a dataset, if it has one, for a dataset of the same tokens; not one that was edited."""
    facts, copies = files.manifest.tokenizer, kept_tokenizers(files)
    if facts is not None and is_own_name(facts.name):
        copies = ((path, content) for path, content in copies if own_name(content) == facts.name)
    for _, definition in islice(copies, 1):
        keep_tokenizer(definition, directory)


def tokenizer_problem(files: Files) -> tuple[str, str] | None:
    """(file, what is wrong) if the tokenizer that a manifest means is not there as it was."""
    facts = files.manifest.tokenizer
    if facts is None or not is_own_name(facts.name):
        return None
    copies = list(kept_tokenizers(files))
    if any(own_name(content) == facts.name for _, content in copies):
        return None
    path = copies[0][0] if copies else os.path.join(files.roots.directory, fmt.TOKENIZER)
    found = own_name(copies[0][1]) if copies else "no such file"
    lost = "tokens are not affected, but cannot be shown as text or annotated by it"
    return path, f"found {found}, expected {facts.name}, the tokenizer that made the tokens; {lost}: restore the file"
