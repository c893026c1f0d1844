"""Kinds of directories, a class each: how one is recognized, and which files of it are of which split."""

import json
import os
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from conceptloader.base.yamlfile import parse_yaml
from conceptloader.errors import ConfigError, InputError
from conceptloader.ingest.layouts.names import is_hidden, kind_of, split_names, unknown_kind

Files = dict[str, list[str]]  # by split, "" for none


@dataclass(frozen=True)
class Tree:
    """A directory. names: paths of all files in it, relative, with slashes, sorted."""

    root: str
    names: Sequence[str]

    def has(self, name: str) -> bool:
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    def below(self, folder: str) -> "Tree":
        begin, end = (bisect_left(self.names, folder + after) for after in ("/", "0"))  # "0" follows "/"
        names = [name[len(folder) + 1 :] for name in self.names[begin:end]]
        return Tree(os.path.join(self.root, folder), names)

    @cached_property
    def folders(self) -> list[str]:
        """Those below it, the outer ones first."""
        found = {name[: at.start()] for name in self.names for at in re.finditer("/", name)}
        return sorted(found)

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    def text(self, name: str) -> str:
        """Raises: InputError."""
        try:
            with open(self.path(name), encoding="utf-8-sig", errors="replace") as file:
                return file.read()
        except OSError as error:
            raise InputError(
                self.path(name), f"cannot be read: {error.strerror}", fix=f"run `chmod u+r {self.path(name)}`"
            ) from error

    def json(self, name: str) -> dict[str, Any]:
        """An object; empty if there is no such file. Raises: InputError."""
        if not self.has(name):
            return {}
        try:
            found = json.loads(self.text(name))
        except ValueError as error:
            fix = f"repair {name}, or pass the files that are meant one by one"
            raise InputError(self.path(name), f"broken JSON ({error})", "an object", fix) from error
        return found if isinstance(found, dict) else {}


@dataclass
class Found:
    """files: by split. more: those that are meant only where they are named.

    rows: how many a manifest, `said`, says there are in a split of either.
    """

    files: Files
    more: Files = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    said: str = ""

    def names(self) -> Iterator[str]:
        for files in (*self.files.values(), *self.more.values()):
            yield from files


class Layout:
    """A kind of directories."""

    def holds(self, tree: Tree) -> bool:
        """Whether this is one."""
        raise NotImplementedError

    def find(self, tree: Tree) -> Found:
        """Raises: InputError for one that is not complete, or cannot be read like this."""
        raise NotImplementedError


class HubCache(Layout):
    """Several revisions of one repository, in the cache of the hub's library: most of their rows are the same."""

    def holds(self, tree: Tree) -> bool:
        revisions = {name.partition("/")[0] for name in tree.below("snapshots").names}
        return len(revisions) > 1 and bool(tree.below("refs").names)

    def find(self, tree: Tree) -> Found:
        fix = "pass one of the folders in snapshots, or hub:OWNER/NAME"
        raise InputError(tree.path("snapshots"), "several revisions of a repository", "one revision", fix)


class Lake(Layout):
    """Tables of Delta, Iceberg, Hudi: a log says which of the files hold which rows by now."""

    LOGS = "_delta_log", "metadata", ".hoodie"

    def check_above(self, folder: str) -> None:
        """Raises: InputError for a folder within a table, such as one of its partitions."""
        for _ in range(4):
            folder = os.path.dirname(folder)
            logs = [log for log in self.LOGS if os.access(os.path.join(folder, log, ""), os.R_OK)]
            above = Tree(folder, sorted(f"{log}/{name}" for log in logs for name in os.listdir(f"{folder}/{log}")))
            if self.holds(above):
                self.find(above)

    def _kind(self, tree: Tree) -> str:
        kinds = {
            "Delta": tree.below("_delta_log").names,
            "Iceberg": [name for name in tree.below("metadata").names if name.endswith(".metadata.json")],
            "Hudi": tree.below(".hoodie").names,
        }
        return next((kind for kind, names in kinds.items() if names), "")

    def holds(self, tree: Tree) -> bool:
        return bool(self._kind(tree))

    def find(self, tree: Tree) -> Found:
        raise InputError(
            tree.root,
            f"a table of {self._kind(tree)}, whose log says which files hold its rows",
            "files of records alone",
            "write the version that is meant as parquet, and name that: with Spark, or with DuckDB, as in "
            "COPY (SELECT * FROM delta_scan('DIR')) TO 'out.parquet', for Iceberg iceberg_scan",
        )


class SavedDataset(Layout):
    """What `datasets.Dataset.save_to_disk` wrote: state.json lists the files, and others may be there."""

    def holds(self, tree: Tree) -> bool:
        return isinstance(tree.json("state.json").get("_data_files"), list)

    def find(self, tree: Tree) -> Found:
        state = tree.json("state.json")
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise InputError(
                tree.root,
                "a saved dataset with indices: its rows are a selection of those in the files, in another order",
                "the rows themselves",
                "write them: datasets.load_from_disk(DIR).flatten_indices().save_to_disk(OTHER)",
            )
        files = [str(entry.get("filename")) if isinstance(entry, dict) else "" for entry in state["_data_files"]]
        return Found({str(state.get("_split") or ""): _present(tree, files, "state.json")})


class SavedDict(Layout):
    """What `datasets.DatasetDict.save_to_disk` wrote: a saved dataset for each split."""

    def holds(self, tree: Tree) -> bool:
        return isinstance(tree.json("dataset_dict.json").get("splits"), list)

    def find(self, tree: Tree) -> Found:
        found: Files = {}
        for split in map(str, tree.json("dataset_dict.json")["splits"]):
            _present(tree, [f"{split}/state.json"], "dataset_dict.json")
            inside = SavedDataset().find(tree.below(split))
            found[split] = [f"{split}/{name}" for name in inside.names()]
        return Found(found)


class Prepared(Layout):
    """What a builder of `datasets` prepared, as in its cache: BUILDER-SPLIT[-i-of-n].arrow, and dataset_info.json."""

    def _files(self, tree: Tree) -> Files:
        splits = tree.json("dataset_info.json").get("splits")
        wanted = {}
        for split, facts in splits.items() if isinstance(splits, dict) else ():
            count = len((isinstance(facts, dict) and facts.get("shard_lengths")) or [0])
            numbers = [""] if count == 1 else [f"-{i:05d}-of-{count:05d}" for i in range(count)]
            pattern = re.compile(rf"[^/]+-{re.escape(split)}{re.escape(numbers[0])}(\.arrow|\.parquet)")
            first = next((name for name in tree.names if pattern.fullmatch(name)), None)
            if first is not None:
                stem, suffix = os.path.splitext(first)
                stem = stem.removesuffix(numbers[0])
                wanted[split] = [f"{stem}{number}{suffix}" for number in numbers]
        return wanted

    def holds(self, tree: Tree) -> bool:
        return bool(self._files(tree))

    def find(self, tree: Tree) -> Found:
        wanted = self._files(tree)
        files = {split: _present(tree, files, "dataset_info.json") for split, files in wanted.items()}
        splits = tree.json("dataset_info.json")["splits"]
        return Found(files, rows=_rows(splits.items()), said="dataset_info.json")


class Repository(Layout):
    """A dataset of the hub whose README.md has `configs`: patterns of files by split."""

    _KEYS = frozenset({"config_name", "data_files", "data_dir", "default", "description", "version"})

    def _configs(self, tree: Tree) -> list[Any]:
        found = self._head(tree).get("configs") or []
        if not isinstance(found, list) or not all(isinstance(one, dict) and "config_name" in one for one in found):
            raise self._bad(tree, found)
        return [one for one in found if "data_files" in one or "data_dir" in one]

    def holds(self, tree: Tree) -> bool:
        return bool(self._configs(tree))

    def find(self, tree: Tree) -> Found:
        configs = {str(one["config_name"]): one for one in self._configs(tree)}
        usual = [name for name, one in configs.items() if one.get("default") is True or len(configs) == 1]
        usual = usual or [name for name in configs if name == "default"]
        for name in usual or configs:
            if more := sorted(configs[name].keys() - self._KEYS):
                raise self._with_options(tree, name, more[0])
        configs = {name: one for name, one in configs.items() if not one.keys() - self._KEYS}
        named = {
            f"{name}/{split}" if split else name: files
            for name, one in configs.items()
            for split, files in self._files(tree, one).items()
        }
        rows = self._rows(tree, configs)
        if len(usual) == 1:
            own = {name.partition("/")[2]: count for name, count in rows.items() if name.startswith(f"{usual[0]}/")}
            return Found(self._files(tree, configs[usual[0]]), named, {**rows, **own}, "README.md")
        return Found(named, rows=rows, said="README.md")

    def _rows(self, tree: Tree, configs: Collection[str]) -> dict[str, int]:
        """How many rows each split of each configuration has, as far as the head says it."""
        info = self._head(tree).get("dataset_info") or []
        found: dict[str, int] = {}
        for one in info if isinstance(info, list) else [info]:
            splits = one.get("splits") if isinstance(one, dict) else None
            name = str(one.get("config_name", "default" if "default" in configs else "")) if splits else ""
            pairs = [(f"{name}/{split.get('name')}", split) for split in splits or () if isinstance(split, dict)]
            found |= _rows(pairs)
        return found

    def _head(self, tree: Tree) -> dict[str, Any]:
        text = tree.text("README.md") if tree.has("README.md") else ""
        head = re.match(r"---[ \t]*\r?\n(.*?\n)---[ \t]*(\r?\n|$)", text, re.DOTALL)
        if head is None or not re.search(r"^configs:", head[1], re.MULTILINE):
            return {}
        try:
            found: dict[str, Any] = parse_yaml(head[1])
            return found
        except ConfigError as error:
            raise error.within(tree.path("README.md")) from error

    def _files(self, tree: Tree, config: Mapping[str, Any]) -> Files:
        """Of one of the configurations."""
        folder = os.path.normpath(str(config.get("data_dir") or "."))
        inside, above = (tree, "") if folder == "." else (tree.below(folder), f"{folder}/")
        given = config.get("data_files")
        if given is None:
            found = plain(inside)
        elif isinstance(given, str) or (isinstance(given, list) and all(isinstance(one, str) for one in given)):
            found = {"train": self._matching(inside, given)}
        elif isinstance(given, list) and all(isinstance(one, dict) and {*one} == {"split", "path"} for one in given):
            found = {str(one["split"]): self._matching(inside, one["path"]) for one in given}
        else:
            raise self._bad(tree, given)
        return {split: [above + name for name in some] for split, some in found.items()}

    def _matching(self, tree: Tree, patterns: object) -> list[str]:
        """Files that a pattern names, or several, in the order of `datasets`. Raises: InputError for one of none."""
        found: dict[str, None] = {}
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            text = str(pattern).removeprefix("./")
            some = [] if "://" in text else [*filter(re.compile(_expression(text)).fullmatch, tree.names)]
            kept = [name for name in some if _unseen(name) <= _unseen(text)]
            if not kept:
                raise InputError(
                    tree.path("README.md"),
                    f"files {text!r}, of which none is there",
                    "those of the repository",
                    "run `hf download`, or pass the files that are meant one by one",
                )
            records = [name for name in kept if kind_of(name)[0]]
            if not records:
                raise unknown_kind(tree.path(kept[0]))
            found |= dict.fromkeys(records)
        return [*found]

    def _with_options(self, tree: Tree, name: str, option: str) -> InputError:
        return InputError(
            tree.path("README.md"),
            f"the option {option!r} of config {name!r}, by which datasets reads its files otherwise",
            "config_name, data_files, data_dir and default alone",
            "save what datasets.load_dataset(DIR) gives (.save_to_disk(OTHER)), or name the files one by one",
        )

    def _bad(self, tree: Tree, found: object) -> InputError:
        return InputError(
            tree.path("README.md"),
            f"configs with {found!r:.100}",
            "a list of config_name and data_files, as the hub has them",
            "correct README.md, or pass the files that are meant one by one",
        )


class SparkOutput(Layout):
    """What a job of Spark or Hadoop wrote: part-*, which may be lines of JSON too, and _SUCCESS at its end."""

    def holds(self, tree: Tree) -> bool:
        return tree.has("_SUCCESS") or bool(tree.below("_temporary").names)

    def find(self, tree: Tree) -> Found:
        if not tree.has("_SUCCESS"):
            raise InputError(
                tree.path("_temporary"),
                "files of a job that has not ended",
                "_SUCCESS",
                "wait for its end or run it again; to read what is there, remove _temporary",
            )
        return Found(plain(tree, json_parts=True))


class Plain(Layout):
    """Any other directory: its files, and those of the directories below it, each after its kind."""

    def holds(self, tree: Tree) -> bool:
        return True

    def find(self, tree: Tree) -> Found:
        claimed: Files = {}
        inside: dict[str, str] = {}  # files of a directory of another kind, and the split that it says
        done: tuple[str, ...] = ()
        for folder in tree.folders:
            if folder.startswith(done) or is_hidden(folder):
                continue
            below = tree.below(folder)
            layout = next((layout for layout in LAYOUTS[:-1] if layout.holds(below)), None)
            if layout is not None:
                done = (*done, f"{folder}/")
                for split, names in layout.find(below).files.items():
                    inside |= {f"{folder}/{name}": split for name in names}
        rest = Tree(tree.root, [name for name in tree.names if not name.startswith(done)])
        by_name = split_names([*_records(rest), *inside])
        for name in sorted(by_name):
            claimed.setdefault(inside.get(name) or by_name[name], []).append(name)
        return Found(claimed)


LAYOUTS: Sequence[Layout] = (
    HubCache(),
    Lake(),
    SavedDict(),
    SavedDataset(),
    Prepared(),
    Repository(),
    SparkOutput(),
    Plain(),
)


def _rows(splits: Iterable[tuple[str, Any]]) -> dict[str, int]:
    """The num_examples of splits."""
    counts = {name: facts.get("num_examples") for name, facts in splits if isinstance(facts, dict)}
    return {name: count for name, count in counts.items() if type(count) is int}


def plain(tree: Tree, json_parts: bool = False) -> Files:
    """Files of records by the split that their names say. json_parts: part-*.json are lines, too."""
    found: Files = {}
    for name, split in split_names(_records(tree, json_parts)).items():
        found.setdefault(split, []).append(name)
    return found


def _records(tree: Tree, json_parts: bool = False) -> list[str]:
    """Files that look like records, but for hidden ones and what `Dataset.map` keeps.

    .json is a usual name for other things too: such files are read only where they are named one by one.
    """
    return [
        name
        for name in tree.names
        if kind_of(name)[0]
        and (not name.lower().endswith(".json") or (json_parts and _last(name).startswith("part-")))
        and not is_hidden(name)
        and not _CACHE.match(_last(name))
    ]


_CACHE = re.compile(r"cache-[0-9a-f]{16}.*\.arrow$")


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _present(tree: Tree, names: list[str], manifest: str) -> list[str]:
    """Raises: InputError if one of the files is missing."""
    for name in names:
        if not tree.has(name):
            fix = f"copy {name} too, or write the folder again"
            raise InputError(tree.path(name), "no such file", f"this file, which {tree.path(manifest)} lists", fix)
    return names


def _unseen(name: str) -> int:
    """How many parts of a path `datasets` overlooks where a pattern does not name them."""
    return sum(part.startswith((".", "__")) for part in name.split("/"))


def _expression(pattern: str) -> str:
    """A pattern of files, as fsspec reads it, as a regular expression."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    ours = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        part.replace("[!", "[^", 1) if part[:1] == "[" and part[-1:] == "]" else ours.get(part, re.escape(part))
        for part in parts
    )
