"""conceptloader import"""

import argparse

from conceptloader.cli import building, chunks
from conceptloader.cli.arguments import add_out
from conceptloader.cli.output import Output
from conceptloader.ingest.chunks.atlas import atlas

DESCRIPTION = """\
Build a dataset from the files of a public corpus with annotations.

  fineweb-atlas   guidelabs/fineweb-atlas: DIR has its folders fineweb-atlas-documents and fineweb-atlas-annotated and
                  its file fineweb-concept-atlas.parquet

  conceptloader import fineweb-atlas data/atlas-parquet --out data/atlas --tokenizer tokenizer.json --workers 16

Documents and chunks are joined in OUT.joined, which takes about as much room as the documents and is
removed at the end. A chunk that the corpus did not annotate, and one that contradicts its document, are left without
annotation and counted. When interrupted, run the same command again. The result has one track, `concepts`; its
concepts are in groups (content, tone, document, entity) with their descriptions: `conceptloader concepts`.
For other corpora of this kind see the options for chunks of `conceptloader build`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("corpus", choices=["fineweb-atlas"])
    parser.add_argument("directory", metavar="DIR")
    add_out(parser.add_argument)
    building.add_workers(parser.add_argument)
    building.add_token_arguments(parser)
    building.add_concept_rules(parser.add_argument_group("concepts").add_argument)
    chunks.add_rules(parser.add_argument_group("chunks").add_argument, "unannotated")
    building.add_build_arguments(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    building.check_tokens("import", arguments)
    return chunks.build(*atlas(arguments.directory, chunks.rules(arguments, "unannotated")), arguments, output)
