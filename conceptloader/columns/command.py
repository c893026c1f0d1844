"""The command `conceptloader column`."""

import argparse

from conceptloader.base.terminal import counted
from conceptloader.cli.arguments import add_dataset, kind, refuse_beside
from conceptloader.cli.output import Output
from conceptloader.columns.finish import finish, remove
from conceptloader.columns.from_files import add_column
from conceptloader.errors import ConfigError

DESCRIPTION = """\
Add a column to a finished dataset, in place: an item of fixed size for each token, such as a teacher's top-k ids. FILE
is one .npy with an item for each token, or Parquet with a list for each document.

  conceptloader column data/web codes codes.npy --in-place
  conceptloader column data/web teacher_ids teacher-*.parquet
  conceptloader column data/web teacher_ids --finish
  conceptloader column data/web teacher_ids --remove

Parquet has a column `id`, or `document` with numbers (--key), and one called NAME (--value): lists of as many items as
the document has tokens. For values that a loop over batches computes: conceptloader.column_writer
(docs/distillation.md); --finish checks what it wrote, and makes it the column. If interrupted, run the command again.
"""

USAGE = "DATASET NAME [FILE ...] [--finish | --remove] [options]"
_shape = kind(
    "at most two numbers, such as 32 or 4,8", lambda text: tuple(map(int, filter(None, text.split(",")))), bool
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser, "directory of the dataset")
    add = parser.add_argument
    add("name", metavar="NAME", help="of the column")
    add("files", nargs="*", metavar="FILE", help="one .npy, or files of Parquet")
    add("--finish", action="store_true", help="finish a column that column_writer wrote")
    add("--remove", action="store_true", help="remove the column, or what was written of one")
    add("--dtype", metavar="TYPE", help="u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 or bf16 (default: that of FILE)")
    add("--shape", type=_shape, metavar="K[,L]", help="shape of an item (default: that of FILE)")
    add("--value", metavar="NAME", help="column of Parquet with the lists (default: the column's name)")
    add("--key", default="id", metavar="NAME", help="column of Parquet with ids, or `document` (default: id)")
    add("--in-place", action="store_true", help="refer to the .npy instead of copying it")
    add("--partial", action="store_true", help="tokens may lack a value")


def run(arguments: argparse.Namespace, output: Output) -> None:
    path, name, of_files = arguments.dataset, arguments.name, ("files", "dtype", "shape", "value", "key", "in_place")
    if arguments.remove:
        refuse_beside("--remove", arguments, "finish", "partial", *of_files)
        found = remove(path, name, arguments.root)
        output.result({"removed": found}, [f"{path}: column {name} is removed ({counted(len(found), 'file')})"])
        return
    if arguments.finish:
        refuse_beside("--finish", arguments, *of_files)
        column = finish(path, name, arguments.partial, roots=arguments.root)
    elif not arguments.files:
        raise ConfigError(
            "column", "no FILE", "files with values, --finish or --remove", "pass FILE, --finish or --remove"
        )
    else:
        options = {key: getattr(arguments, key) for key in ("dtype", "shape", "value", "key", "in_place", "partial")}
        column = add_column(path, name, arguments.files, roots=arguments.root, **options)
    missing = column.holes.tokens if column.holes else 0
    value = {
        "path": path, "column": name, "dtype": column.dtype, "shape": list(column.shape), "bytes": column.files.bytes,
        "missing": missing, "fingerprint": column.fingerprint,
    }  # fmt: skip
    output.result(value, [f"{path}: column {name}, {column.dtype} {list(column.shape)}, {missing:,} tokens without"])
