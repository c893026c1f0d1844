"""From what a user names to files: a file, a directory of some layout, a repository of the hub; of one split."""

import glob
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from conceptloader.base.terminal import counted
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.hub import PREFIX, HubName
from conceptloader.ingest.layouts.layouts import LAYOUTS, Files, Found, Lake, Tree
from conceptloader.ingest.layouts.names import (
    beside_each_other,
    check_numbered,
    columns_of,
    is_hidden,
    kind_of,
    split_names,
    unknown_kind,
    usual_split,
)
from conceptloader.ingest.parquet import row_groups

log = logging.getLogger(__name__)

ALL = "all"  # as in `datasets`
_HUB = ("*.jsonl", "*.ndjson", "*.csv", "*.tsv", "*.gz", "*.zst", "*.parquet", "*.parq", "*.arrow")
_MANIFESTS = ("README.md", "*state.json", "*dataset_dict.json", "*dataset_info.json", "*_delta_log/*.json", "*_SUCCESS")

_KNOWN = "README.md", "state.json", "dataset_info.json", "dataset_dict.json"


@dataclass(frozen=True)
class InputFile:
    """columns: values of more columns, that the path says."""

    path: str
    columns: dict[str, str | None] = field(default_factory=dict)


def input_files(inputs: Sequence[str | os.PathLike[str]], split: str | None = None) -> list[InputFile]:
    """The files that `inputs` name, in the given order.

    A directory stands for those that the library which wrote it would read, see `LAYOUTS`, of the split; "all" are all
    splits. `hub:OWNER/NAME[/PATH][:SPLIT][@REVISION]`: a dataset of the Hugging Face hub, or a part of it.

    Raises: ConfigError for a path that does not exist, a file of another kind, or several splits of which none is
    named; InputError for a directory that is not complete.
    """
    found: list[InputFile] = []
    directories = 0
    for given in [os.fspath(one) for one in inputs]:
        tree, own, hub = _opened(given)
        if tree is None:
            if own is not None:
                raise ConfigError(
                    f"input {given}", f"split {own!r} of a file", "a directory for it", f"omit :{own} from the name"
                )
            found.append(InputFile(_checked(given if hub is None else hub.fetch(hub.below(())))))
        else:
            directories += 1
            layout = next(layout for layout in LAYOUTS if layout.holds(tree)).find(tree)
            files = _of_tree(tree, layout, own or split)
            if hub is not None:
                _fetch(hub, tree, files)
            _check_rows(tree, layout, files)
            found += [InputFile(tree.path(name), columns_of(name)) for name in files]
    if split is not None and not directories:
        raise ConfigError("split", repr(split), "a directory among the inputs, which has it", "omit --split")
    named = {*split_names([os.path.basename(os.path.abspath(one)) for one in inputs]).values()} - {""}
    if len(named) > 1:
        log.warning("inputs: found several splits (%s), each named; all of them are read", ", ".join(sorted(named)))
    for path, first in beside_each_other([file.path for file in found]):
        log.warning("%s: found it next to %s; records that are in both are there twice", path, first)
    return found


def _opened(given: str) -> tuple[Tree | None, str | None, HubName | None]:
    """(the directory that an input is, None for a file; its own split; if its files are to be fetched, from where)."""
    if not given.startswith(PREFIX):
        return _tree(given), None, None
    hub = HubName.parse(given, "dataset")
    names = hub.names()
    if not names:
        return _tree(hub.fetch(hub.below((*_HUB, *_MANIFESTS)))), hub.split, hub
    if names == [hub.path]:
        if not kind_of(hub.path)[0]:
            raise unknown_kind(given)
        return None, hub.split, hub
    root = hub.fetch(glob.escape(name) for name in names if name.rpartition("/")[2] in _KNOWN)
    return Tree(root, [name.removeprefix(f"{hub.path}/") for name in names]), hub.split, hub


def _tree(path: str) -> Tree | None:
    if not os.path.isdir(path):
        return None
    Lake().check_above(os.path.abspath(path))
    return Tree(path, sorted(os.path.relpath(one, path).replace(os.sep, "/") for one in files_below(path)))


def _checked(path: str) -> str:
    """The path of a file of records. Raises: ConfigError."""
    if not os.path.exists(path):
        raise ConfigError(
            f"input {path}",
            "no such file or directory",
            "an existing file or directory",
            f"run `ls {path}`: the path may be misspelled, or its disk not mounted",
        )
    if not kind_of(path)[0]:
        raise unknown_kind(path)
    return path


def _fetch(hub: HubName, tree: Tree, files: Sequence[str]) -> None:
    """Fetch those of the files that are not here, by few patterns, since the hub's library tries all on every file."""
    missing = [name for name in files if not os.path.exists(tree.path(name))]
    if missing:
        hub.fetch(hub.below({re.sub(r"\d", "[0-9]", glob.escape(name)): None for name in missing}))


def _check_rows(tree: Tree, found: Found, chosen: Sequence[str]) -> None:
    """Tables of each split that is read whole have as many rows as a manifest says. Raises: InputError."""
    for split, rows in found.rows.items():
        files = found.files.get(split, ())
        if not files or not {*files} <= {*chosen} or any(kind_of(name)[0] != "table" for name in files):
            continue
        count = sum(rows for name in files for _, rows in row_groups(tree.path(name)))
        if count != rows:
            raise InputError(
                f"{tree.root}: {split}" if split else tree.root,
                f"{count:,} rows",
                f"{rows:,}, as {tree.path(found.said)} says",
                "complete the copy, or pass the files that are meant one by one",
            )


def _of_tree(tree: Tree, found: Found, split: str | None) -> list[str]:
    files = _choose(tree.root, found, split)
    check_numbered(tree.root, files, [name for name in tree.names if name.endswith(".incomplete")])
    _say_what_is_skipped(tree, found)
    return files


def _choose(folder: str, found: Found, split: str | None) -> list[str]:
    """The files of a split. Raises: ConfigError if there are several, and none was named, or not one of them."""
    files = {name: some for name, some in found.files.items() if some}
    named = [name for name in files if name]
    if split == ALL:
        return list(dict.fromkeys(name for some in files.values() for name in some))
    if split is None:
        if len(files) <= 1:
            return [name for some in files.values() for name in some]
        if [*map(usual_split, named)] == ["train"]:
            shown = files[""][0]
            log.warning("%s: read files of no split, such as %s, with split %r", folder, shown, named[0])
            return sorted(name for some in files.values() for name in some)
        usual = next((name for name in named if "train" in name.lower()), named[0])
        fix = f"pass --split {usual}, or --split {ALL} for all of them"
        raise ConfigError(f"input {folder}", _listed(files), "files of one split", fix)
    known = {**found.more, **files}
    same = [name for name in known if name and (name == split or usual_split(name) == usual_split(split))]
    if split in known or len(same) == 1:
        chosen = split if split in known else same[0]
        left = [name for name in files if name != chosen and (not name or usual_split(name) == usual_split(chosen))]
        for name in left:
            shown = f"split {name!r}" if name else "no split"
            log.warning("%s: skipped %d files of %s, such as %s", folder, len(files[name]), shown, files[name][0])
        return known[chosen]
    if not named and usual_split(split) == "train":  # what is of no split, `datasets` calls so
        return files.get("", [])
    raise ConfigError(
        f"input {folder}: split", repr(split), f"one of {_listed(known)}", "pass --split with one of these"
    )


def _listed(files: Files) -> str:
    return (
        ", ".join(f"{name or 'of no split'} ({counted(len(some), 'file')})" for name, some in files.items()) or "none"
    )


def _say_what_is_skipped(tree: Tree, found: Found) -> None:
    """Warn of files that look like records but are none of the dataset, and of those of other kinds."""
    taken = {*found.names()}
    left = [name for name in tree.names if name not in taken]
    records = [name for name in left if kind_of(name)[0] and not name.lower().endswith(".json")]
    known = {*records, *(name for name in left if is_hidden(name) or name.rpartition("/")[2] in _KNOWN)}
    others = [name for name in left if name not in known]
    for kind, names in (("that are no data of this directory", records), ("of other kinds", others)):
        if names:
            log.warning("%s: skipped %d files %s, such as %s", tree.root, len(names), kind, tree.path(names[0]))


def skipped_files(inputs: Sequence[str | os.PathLike[str]]) -> list[str]:
    """An example of the files that directories hold, for each reason why it is none of records."""
    found: dict[str, str] = {}
    for folder, path in ((one, path) for one in inputs if os.path.isdir(one) for path in files_below(os.fspath(one))):
        name = os.path.relpath(path, folder)
        if os.path.basename(path) in _KNOWN:
            why = "lists no files"
        elif is_hidden(name):
            why = "is hidden by its name"
        elif path.lower().endswith(".json"):
            why = "is read where it is named itself"
        else:
            why = "is not listed" if kind_of(path)[0] else "has another ending"
        found.setdefault(why, f"{path} {why}")
    return [*found.values()]


def files_below(folder: str) -> list[str]:
    """Paths of all files below a folder, links followed, sorted.

    Raises: InputError for a folder that cannot be looked into, or is met twice: os.walk would skip the one, and
    repeat the other.
    """

    def unreadable(error: OSError) -> None:
        raise InputError(
            error.filename,
            f"cannot be read: {error.strerror}",
            fix=f"run `chmod u+r {error.filename}`, or pass the files that are meant",
        ) from error

    found, met = [], dict[str, str]()
    for root, _, names in os.walk(folder, onerror=unreadable, followlinks=True):
        real = os.path.realpath(root)
        if real in met:
            link = next((one for one in (root, met[real]) if os.path.islink(one)), None)  # either may come first
            fix = f"remove the link: rm {link}" if link else "pass the folders that are meant one by one"
            raise InputError(root, f"a folder that is read already, as {met[real]}", "each once", fix)
        met[real] = root
        found += [os.path.join(root, name) for name in names]
    return sorted(found)
