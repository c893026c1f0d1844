"""The command `conceptloader adopt`."""

import argparse

from conceptloader.base.arguments import add_out
from conceptloader.base.options import add_options, options_of
from conceptloader.base.terminal import counted
from conceptloader.cli.output import Output
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.ingest.adopt.options import AdoptOptions

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
    parser.add_argument("paths", nargs="+", metavar="PATH")
    add_out(parser.add_argument)
    add_options(parser, AdoptOptions)


def run(arguments: argparse.Namespace, output: Output) -> None:
    manifest = adopt(arguments.paths, arguments.out, **options_of(arguments, AdoptOptions))
    kinds = sorted({entry.kind for entry in manifest.shards.foreign if entry})
    documents = counted(manifest.num_documents, "document") if manifest.num_documents else "unknown documents"
    files = f"{counted(len(manifest.shards), 'file')} of {', '.join(kinds)}, in place"
    line = f"{documents}, {counted(manifest.num_tokens, 'token')}, {files}"
    output.manifest(arguments.out, manifest, {"kinds": kinds}, line)
