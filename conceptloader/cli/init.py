"""The command `conceptloader init`."""

import argparse
import os
from collections.abc import Iterable
from glob import glob
from itertools import chain, count

import yaml

from conceptloader.base.arguments import add_root, positive, refuse_beside, track_file
from conceptloader.base.terminal import counted
from conceptloader.base.version import PAGES
from conceptloader.cli.first_recipe import write_recipe
from conceptloader.cli.output import Output
from conceptloader.config import load_config, open_blend
from conceptloader.errors import ConfigError
from conceptloader.format.read.dataset import open_dataset
from conceptloader.format.spec import layout as fmt
from conceptloader.ingest.records.names import require_new
from conceptloader.storage.durable import require_local, write_file

DESCRIPTION = """\
For raw files write a recipe of `build`: the columns that are sure by their names and types, files of the concept names,
and a question about each other column, as a comment.

  conceptloader init corpus.parquet --tokenizer tokenizer.json --out build.yaml
  conceptloader build --recipe build.yaml --dry-run

For datasets write a configuration: their paths, weights by size, and their tracks of concepts. It is opened before it
is written, which checks that it works.

  conceptloader init data/web data/code --out run.yaml
  conceptloader init data/web-* --out run.yaml
  conceptloader init data/corpus --out run.yaml --seq-len 512
"""

USAGE = "FILE|DATASET [...] --out FILE [options]"

_SEQ_LEN = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    meaning = "raw files or their directories; or datasets, also by URL"
    add("inputs", nargs="+", metavar="INPUT", help=meaning)
    add("--out", required=True, metavar="FILE", help="recipe or configuration to write, such as run.yaml")
    meaning = "of raw files: names of a track's concepts, as an earlier dataset has them (default: they are collected)"
    add("--vocabulary", action="append", default=[], type=track_file, metavar="[TRACK=]FILE", help=meaning)
    meaning = "of raw files: `bytes`, a tokenizer.json, a transformers folder, or hub:OWNER/NAME"
    add("--tokenizer", metavar="bytes|PATH", help=meaning)
    add(
        "--seq-len",
        type=positive,
        metavar="S",
        help=f"of a configuration (default: {_SEQ_LEN}, or less for small datasets)",
    )
    add_root(add)


def run(arguments: argparse.Namespace, output: Output) -> None:
    out = os.path.abspath(arguments.out)
    require_local(out)
    require_new(out)
    if not os.path.isdir(os.path.dirname(out)):
        raise ConfigError(
            f"--out {arguments.out}",
            f"no directory {os.path.dirname(out)}",
            "an existing directory",
            f"run `mkdir -p {os.path.dirname(out)}`",
        )
    arguments.inputs = [one for path in arguments.inputs for one in _matching(path)]
    raw = [path for path in arguments.inputs if _is_raw(path)]
    datasets = [path for path in arguments.inputs if path not in raw]
    if raw and datasets:
        fix = f"to annotate the dataset: conceptloader annotate {datasets[0]} {raw[0]} --track NAME --out DIR"
        raise ConfigError("init", f"the dataset {datasets[0]} and the raw file {raw[0]}", "one of the two", fix)
    if raw:
        refuse_beside(f"raw files ({raw[0]})", arguments, "seq_len", "root")
        write_recipe(arguments, output)
    else:
        refuse_beside("datasets", arguments, "tokenizer", "vocabulary")
        _write_configuration(arguments, out, output)


def _matching(path: str) -> list[str]:
    """The paths of a pattern that no shell has expanded; else the path."""
    return [path] if os.path.lexists(path) else sorted(glob(path)) or [path]


def _is_raw(path: str) -> bool:
    """Whether it is input of a build, by what is there."""
    if os.path.isdir(path):
        return not os.path.exists(os.path.join(path, fmt.MANIFEST))
    return path.startswith("hub:") or os.path.isfile(path)


def _write_configuration(arguments: argparse.Namespace, out: str, output: Output) -> None:
    paths = [path if "://" in path else os.path.abspath(path) for path in arguments.inputs]
    datasets = dict(zip(_names(paths), (open_dataset(path, arguments.root) for path in paths), strict=True))
    found = {name for ds in datasets.values() for name in ds.concept_tracks}
    room = min(ds.num_tokens - (ds.mode != "document") for ds in datasets.values())
    seq_len = arguments.seq_len or max(1, min(_SEQ_LEN, room))
    given: dict[str, object] = {
        "seq_len": seq_len,
        "datasets": {
            name: {"path": path if "://" in path else os.path.relpath(path, os.path.dirname(out))}
            for name, path in zip(datasets, paths, strict=True)
        },
        "weights": "by_size" if len(datasets) > 1 else None,
        "allowed_roots": [root if "://" in root else os.path.abspath(root) for root in arguments.root or ()],
        "tracks": {track: {} for track in sorted(found)},
    }
    data = {key: value for key, value in given.items() if value}
    blend = open_blend(load_config(data, base_dir=os.path.dirname(out)), datasets)
    text = (
        f"# Keys: {PAGES}/configuration.md\n# Try it: conceptloader trace FILE --sample 0; conceptloader doctor FILE\n"
    )
    text = text.replace("FILE", os.path.basename(out)) + yaml.safe_dump(data, sort_keys=False)
    write_file(out, text.encode("utf-8"))
    samples = sum(blend.order.sizes)
    windows = f"{counted(samples, 'sample')} of {counted(seq_len, 'token')}"
    line = f"{arguments.out}: {counted(len(datasets), 'dataset')}, {windows}"
    output.result({"path": out, "samples": samples, "configuration": data}, [line])


def _names(paths: Iterable[str]) -> list[str]:
    """Return a name for each dataset: the last part of its path, with a number appended if it is taken."""
    names: list[str] = []
    for path in paths:
        name = path.rstrip("/").rpartition("/")[2].replace("@", "-") or "data"
        numbered = (f"{name}-{number}" for number in count(2))
        names.append(next(one for one in chain([name], numbered) if one not in names))
    return names
