"""The command `conceptloader adopt`."""

import argparse

from conceptloader.base.arguments import add_out, chosen, eos_id, positive
from conceptloader.base.terminal import counted
from conceptloader.cli.output import Output
from conceptloader.errors import ConfigError
from conceptloader.format.spec.manifest import Tokenizer
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.ingest.records.tokenizer import load_tokenizer

DESCRIPTION = """\
Use existing token files as a dataset, in place. Only a manifest and a table of documents are written.

  conceptloader adopt /data/megatron/web_text_document --out data/web
  conceptloader adopt /data/nanoset/ --out data/set          a directory of .ds, .ds.index, .ds.metadata
  conceptloader adopt part-*.npy --out data/olmo --dtype uint16 --document-end 50256

PATH is the prefix (or either file) of Megatron's .bin and .idx, a .ds file, a flat file of tokens, or a directory of
one of these, read in the order of names. Flat files do not describe themselves: name their --dtype, and --document-end,
the token that ends each document; without it, documents are unknown. Tokens are read only to find these ends; a --dtype
that the first ones contradict, and a --document-end that is nowhere, are errors.

Do not move or change the files: readers check the size and a spot checksum of each; `verify` checks the index,
`verify --full` the tokens. A resume accepts copies, and raises if the index or the spot checksum is another one. If the
files are outside of the directory that contains DIR, list their directory under allowed_roots in the configuration.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH")
    add_out(add)
    add("--ignore-loss-mask", action="store_true", help="accept .ds files with a .ds.loss, which is not read")
    group = parser.add_argument_group("flat files").add_argument
    group("--dtype", metavar="TYPE", help="uint8, uint16, uint32, int32 or int64")
    group("--document-end", type=int, metavar="ID", help="the token that ends each document")
    group = parser.add_argument_group(
        "tokenizer (recorded in the manifest, so that datasets of different tokenizers are not mixed)"
    ).add_argument
    group(
        "--tokenizer", metavar="bytes|PATH", help="`bytes`, a tokenizer.json, or a transformers folder; a copy is kept"
    )
    group("--tokenizer-name", metavar="NAME", help="any name, instead of --tokenizer; needs --vocab-size")
    group("--vocab-size", type=positive, metavar="N", help="number of token ids, with --tokenizer-name")
    group("--eos", metavar="TOKEN|ID", help="token that ends documents (default: the tokenizer's)")
    group("--allow-mixed-tokenizers", action="store_true", help="accept files that name different tokenizers")


def run(arguments: argparse.Namespace, output: Output) -> None:
    tokenizer, definition = _tokenizer(arguments)
    manifest = adopt(
        arguments.paths,
        arguments.out,
        tokenizer=tokenizer,
        definition=definition,
        tokenizer_source=arguments.tokenizer,
        **chosen(arguments, "dtype", "document_end", "allow_mixed_tokenizers", "ignore_loss_mask"),
    )
    kinds = sorted({entry.kind for entry in manifest.shards.foreign if entry})
    documents = counted(manifest.num_documents, "document") if manifest.num_documents else "unknown documents"
    files = f"{counted(len(manifest.shards), 'file')} of {', '.join(kinds)}, in place"
    line = f"{documents}, {counted(manifest.num_tokens, 'token')}, {files}"
    output.manifest(arguments.out, manifest, {"kinds": kinds}, line)


def _tokenizer(arguments: argparse.Namespace) -> tuple[Tokenizer | None, bytes | None]:
    """Return what the manifest records of the tokenizer, and the bytes of its file."""
    if arguments.tokenizer is not None:
        if arguments.tokenizer_name is not None or arguments.vocab_size is not None:
            raise ConfigError(
                "adopt",
                "--tokenizer with --tokenizer-name or --vocab-size",
                "either --tokenizer or the other two",
                "omit --tokenizer, or --tokenizer-name and --vocab-size",
            )
        found = load_tokenizer(arguments.tokenizer, arguments.eos)
        return Tokenizer(name=found.name, vocab_size=found.vocab_size, eos_id=found.eos_id), found.definition
    if (arguments.tokenizer_name is None) != (arguments.vocab_size is None):
        raise ConfigError(
            "adopt",
            "one of --tokenizer-name and --vocab-size",
            "the two together, or neither",
            "pass --tokenizer-name NAME and --vocab-size N, or omit both",
        )
    if arguments.tokenizer_name is None:
        if arguments.eos is not None:
            raise ConfigError(
                "adopt",
                "--eos without a tokenizer",
                "--tokenizer or --tokenizer-name",
                "add --tokenizer or --tokenizer-name, or omit --eos",
            )
        return None, None
    eos = eos_id("adopt", arguments.eos)
    return Tokenizer(name=arguments.tokenizer_name, vocab_size=arguments.vocab_size, eos_id=eos), None
