"""The command `conceptloader column`."""

import argparse

from conceptloader.base.arguments import add_dataset, refuse_beside
from conceptloader.base.terminal import counted
from conceptloader.cli.output import Output
from conceptloader.columns.finish import finish, remove
from conceptloader.columns.from_files import add_column
from conceptloader.errors import ConfigError

DESCRIPTION = """\
Add a column to a finished dataset: an item of fixed size for each token, such as a teacher's top-k ids. FILE
is a .npy with an item for each token, in the order of the dataset.

  conceptloader column data/web codes codes.npy
  conceptloader column data/web teacher_ids --finish
  conceptloader column data/web teacher_ids --remove

For values by batch or by document: conceptloader.column_writer (docs/distillation.md); --finish makes what it wrote the
column. If interrupted, run the command again.
"""

USAGE = "DATASET NAME [FILE] [--finish | --remove] [options]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_dataset(parser, "directory of the dataset")
    add = parser.add_argument
    add("name", metavar="NAME", help="of the column")
    add("file", nargs="?", metavar="FILE", help="a .npy")
    add("--finish", action="store_true", help="finish a column that column_writer wrote")
    add("--remove", action="store_true", help="remove the column, or what was written of one")
    add("--partial", action="store_true", help="with --finish: tokens may lack a value")


def run(arguments: argparse.Namespace, output: Output) -> None:
    path, name = arguments.dataset, arguments.name
    if arguments.remove:
        refuse_beside("--remove", arguments, "finish", "partial", "file")
        found = remove(path, name, arguments.root)
        output.result({"removed": found}, [f"{path}: column {name} is removed ({counted(len(found), 'file')})"])
        return
    if arguments.finish:
        refuse_beside("--finish", arguments, "file")
        column = finish(path, name, arguments.partial, arguments.root)
    elif arguments.file is None:
        expected = "a file with values, --finish or --remove"
        raise ConfigError("column", "no FILE", expected, "pass FILE, --finish or --remove")
    else:
        refuse_beside("FILE", arguments, "partial")
        column = add_column(path, name, arguments.file, arguments.root)
    missing = column.holes.tokens if column.holes else 0
    value = {
        "path": path, "column": name, "dtype": column.dtype, "shape": list(column.shape), "bytes": column.files.bytes,
        "missing": missing, "fingerprint": column.fingerprint,
    }  # fmt: skip
    output.result(value, [f"{path}: column {name}, {column.dtype} {list(column.shape)}, {missing:,} tokens without"])
