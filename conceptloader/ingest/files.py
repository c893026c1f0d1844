"""From what a user names to files: a file, a folder of files of one kind, or a repository of the hub."""

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from conceptloader.errors import ConfigError, InputError, remedy
from conceptloader.ingest.hub import fetched

log = logging.getLogger(__name__)

EXPECTED = ".jsonl, .jsonl.gz, .jsonl.zst or .parquet"
_LINES, _TABLES = (".jsonl", ".ndjson", ".json"), (".parquet", ".parq")
_CSV = "write it as Parquet: duckdb -c \"COPY (FROM read_csv('{0}', all_varchar = true)) TO '{0}.parquet'\""
_ARROW = "write it as Parquet: datasets.Dataset.from_file({1!r}).to_parquet({1!r} + '.parquet')"
_CONVERTED = {r".*\.[ct]sv(\.gz|\.zst)?": _CSV, r".*\.arrow": _ARROW}
_COMPRESSED = {".gz": "gz", ".zst": "zst"}
_SAYS = ("README.md", "state.json", "dataset_dict.json", "dataset_info.json")  # of files, how they belong together
_FROM_HUB = tuple(f"*{end}" for end in (*_LINES, *_TABLES, *_COMPRESSED, *_SAYS) if end != ".json")

# Of a table or another library's dataset, whose records are not simply those of its files: what writes them as such.
_TABLE = "write the version that is meant as Parquet, such as COPY (SELECT * FROM delta_scan('DIR')) TO 'out.parquet'"
_SAVED = "write its rows: datasets.load_from_disk('DIR').to_parquet('out.parquet')"
_OF_OTHERS = {
    r"(.*/)?(_delta_log|\.hoodie)/.*|(.*/)?metadata/[^/]*\.metadata\.json": _TABLE,
    r"(.*/)?(state|dataset_dict|dataset_info)\.json": _SAVED,
    r"(.*/)?_temporary/.*|.*\.incomplete": "wait until the job or download that writes it has ended, or run it again",
    r"(.*/)?snapshots/[0-9a-f]{40}/.*": "pass one of the folders in snapshots, or hub:OWNER/NAME/PATH",
}
_SPLIT = re.compile(
    r"(?<![a-z])(train|training|test|testing|eval|evaluation|dev|val|valid|validation|holdout|heldout)(?![a-z])"
)
_NUMBERED = re.compile(r"(.*?)[-_.]?(\d+)-of-(\d+)(?!\d)[^/]*")
_PASS = "pass the files that are meant, such as {folder}/*.parquet"


def kind_of(path: str) -> tuple[str, str | None]:
    """("lines" or "table", compression), by endings in any case; ("", None) for a file of another kind."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in _TABLES:
        return "table", None
    compression = _COMPRESSED.get(suffix)
    if compression:
        suffix = os.path.splitext(stem)[1]
    return ("lines", compression) if suffix in _LINES else ("", None)


def as_paths(given: Any) -> list[str]:
    """Paths as a list; one stands for itself. Raises: ConfigError for anything else."""
    try:
        return [os.fspath(one) for one in ([given] if isinstance(given, (str, os.PathLike)) else given)]
    except TypeError:
        found, fix = f"{given!r:.80}", "pass the path of a file or folder, or a list of such"
        raise ConfigError("inputs", found, "a path, or a list of paths", fix) from None


def input_files(inputs: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The files that `inputs` name, in the given order; of a folder all that are below it, sorted by path.

    `hub:OWNER/NAME[/PATH][@REVISION]`: a dataset of the Hugging Face hub, or a folder or file of it.

    Raises: ConfigError for a path that does not exist, a file of another kind, and a folder in which anything says that
    its records are not simply those of all its files; InputError for a folder that cannot be read.
    """
    found: list[str] = []
    for given in (fetched(one, "dataset", _FROM_HUB) for one in as_paths(inputs)):
        if os.path.isdir(given):
            found += _of_folder(given)
        elif not os.path.exists(given):
            fix = f"run `ls {given}`: the path may be misspelled, or its disk not mounted"
            raise ConfigError(f"input {given}", "no such file or directory", "an existing file or directory", fix)
        elif not kind_of(given)[0]:
            fix = 'unpack it, or write it as .parquet, or as .jsonl with a line {"text": ...} for each document'
            raise ConfigError(
                f"input {given}", "an unknown file name", f"a name that ends in {EXPECTED}", _converted(given) or fix
            )
        else:
            found.append(given)
    return found


def _converted(path: str) -> str:
    """How to make a table of a file that a build does not read; empty for others."""
    quoted = re.sub(r'(["$`\\])', r"\\\1", path.replace("'", "''"))  # in text of SQL, in double quotes of a shell
    return next((say.format(quoted, path) for end, say in _CONVERTED.items() if re.fullmatch(end, path.lower())), "")


def _of_folder(folder: str) -> list[str]:
    paths = files_below(folder)
    if fix := next(filter(None, map(_converted, paths)), ""):
        raise ConfigError(f"input {folder}", "files of another kind", f"files that end in {EXPECTED}", fix)
    kept = [path for path in paths if kind_of(path)[0] and not path.lower().endswith(".json")]
    check_folder(folder, paths, kept)
    if others := [path for path in paths if path not in {*kept}]:
        log.warning("%s: skipped %d files of other kinds, such as %s", folder, len(others), others[0])
    return kept


def check_folder(folder: str, paths: Sequence[str], kept: Sequence[str]) -> None:
    """Raise ConfigError if anything says that the data of a folder are not simply those of the files `kept`.

    paths: of all files below it.
    """

    def refuse(found: str, expected: str, fix: str = "") -> None:
        raise ConfigError(f"input {folder}", found, expected, fix or _PASS.format(folder=folder))

    top = os.path.abspath(folder)
    tables = [os.path.normpath(os.path.join(top, *[".."] * k)) for k in range(4)]
    if above := next((one for one in tables if os.path.isdir(os.path.join(one, "_delta_log"))), None):
        refuse(f"the Delta table {above}, whose log says which files count", "files that all count", _TABLE)
    names = {path: os.path.relpath(path, folder).replace(os.sep, "/") for path in paths}
    for pattern, fix in _OF_OTHERS.items():
        if says := next((name for name in names.values() if re.fullmatch(pattern, name)), None):
            refuse(f"{says}: not all files in it count, or not all of their rows", "a folder of files alone", fix)
    readme = next((path for path in paths if names[path] == "README.md"), None)
    if readme is not None and _has_configs(readme):
        fix = f"{_PASS.format(folder=folder)}; of the hub, pass hub:OWNER/NAME/CONFIG/SPLIT@refs/convert/parquet"
        refuse("README.md with `configs`, which say which files belong together", "a folder of files alone", fix)
    of = [names[path] for path in kept]
    if hidden := next((name for name in of if any(part[0] in "._" for part in name.split("/"))), None):
        refuse(f"{hidden}, which is hidden by its name", "no hidden files")
    if keyed := next((name for name in of if "=" in name), None):
        refuse(f"{keyed}, whose folder is the value of a column", "columns that files hold")
    kinds = sorted({_ending(name) for name in of})
    if len(kinds) > 1:
        refuse(f"files of several kinds: {', '.join(kinds)}", "files of one kind")
    splits = sorted({" and ".join(sorted({*_SPLIT.findall(name.lower())})) or "none" for name in of})
    if len(splits) > 1:
        refuse(f"files of several splits: {', '.join(splits)}", "files of one split")
    _check_numbered(folder, of)


def _ending(name: str) -> str:
    stem, suffix = os.path.splitext(name.lower())
    return os.path.splitext(stem)[1] + suffix if suffix in _COMPRESSED else suffix


def _has_configs(readme: str) -> bool:
    with open(readme, encoding="utf-8", errors="replace") as file:
        head = re.match(r"\ufeff?---[ \t]*\r?\n(.*?\n)---", file.read(), re.DOTALL)
    return head is not None and re.search(r"^configs:", head[1], re.MULTILINE) is not None


def _check_numbered(folder: str, names: Sequence[str]) -> None:
    """Of files NAME-i-of-n all n are there, once. Raises: ConfigError."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for name in names:
        if number := _NUMBERED.fullmatch(name):
            found[number[1]].append((int(number[2]), int(number[3])))
    for stem, pairs in found.items():
        numbers, totals = sorted(i for i, _ in pairs), {n for _, n in pairs}
        first = int(numbers[0] > 0)
        if len(totals) > 1 or numbers != [*range(first, first + pairs[0][1])]:
            shown = ", ".join(map(str, numbers[:5])) + (", ..." if numbers[5:] else "")
            raise ConfigError(
                f"input {os.path.join(folder, stem)}-*-of-*",
                f"the numbers {shown} of {' and of '.join(map(str, sorted(totals)))}",
                "the files of one set, each once",
                "complete the set, remove what is left of another, or pass the files that are meant",
            )


def files_below(folder: str) -> list[str]:
    """Paths of all files below a folder, links followed, sorted.

    Raises: InputError for a folder that cannot be looked into, or is met twice: os.walk would skip the one, and
    repeat the other.
    """

    def unreadable(error: OSError) -> None:
        fix = f"run `chmod u+r {error.filename}`, or pass the files that are meant"
        raise InputError(error.filename, f"cannot be read: {error.strerror}", fix=remedy(error, fix)) from error

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
