"""Links that a dataset is shipped with, under every name that a command writes: nothing outside of it changes."""

import os
import re
import shlex
import shutil
import sys
from contextlib import contextmanager, suppress

import pytest

import conceptloader as cl
from conceptloader.cli import main
from conceptloader.columns.finish import remove
from conceptloader.errors import ConceptloaderError
from conceptloader.testing import random_documents, write_dataset
from tests.archives import files_below
from tests.corpora.records import write_rows

_RANDOM = re.compile(r"[0-9a-f]{16}")  # of temporary names and logs, which nobody can ship
_EVENTS = {"os.rename": 1, "os.mkdir": 0, "os.remove": 0, "os.truncate": 0, "os.link": 1}
_seen = None


def _hook(event, arguments):
    if _seen is not None and (
        event in _EVENTS or (event == "open" and int(arguments[2] or 0) & (os.O_ACCMODE | os.O_CREAT))
    ):
        named = arguments[_EVENTS.get(event, 0)]
        _seen.append(os.path.abspath(os.fsdecode(named)) if isinstance(named, (str, bytes, os.PathLike)) else "")


@contextmanager
def _written(root):
    """The names below `root` that are opened for writing, made or replaced in the block, with their folders."""
    global _seen
    _seen, found = [], set()
    try:
        yield found
    finally:
        names = [os.path.relpath(path, root) for path in _seen if path.startswith(f"{root}/")]
        _seen = None
        for name in names:
            parts = name.split("/")
            found |= {"/".join(parts[:n]) for n in range(1, len(parts) + 1)}
        found -= {name for name in found if _RANDOM.search(name)}


sys.addaudithook(_hook)


def _write_column(path):
    config = {"seq_len": 16, "datasets": {"a": {"path": str(path)}}, "packing": {}}
    with (
        cl.batches(config, micro_batch_size=4, num_samples=40, last_batch="partial") as loader,
        cl.column_writer(path, "t", "u1", loader=loader) as writer,
    ):
        for batch in loader:
            writer.write(batch, batch["labels"] % 200)


def _finish(path):
    cl.column_writer(path, "t", "u1").finish(partial=True)


def _command(words):
    return lambda path: main(shlex.split(words.replace("DS", str(path)).replace("TMP", str(path.parent))))


ANNOTATE = "TMP/spans.jsonl --vocabulary TMP/names.txt --track t --span-unit token"
COMMANDS = {  # and whether a column was begun before
    "write": (_write_column, False),
    "write more": (_write_column, True),
    "finish": (_finish, True),
    "remove": (lambda path: (_finish(path), remove(path, "t")), True),
    "index": (_command("index DS"), False),
    "verify": (_command("verify DS --full"), False),
    "annotate": (_command(f"annotate DS {ANNOTATE} --out DS/new"), False),
    "subset": (_command("subset DS --where \"id = 'doc-1'\" --out DS/new"), False),
    "adopt": (_command("adopt TMP/raw.bin --dtype u2 --out DS/new"), False),
    "inspect": (_command("inspect DS --random 1 --html DS/page.html"), False),
    "query": (_command("query TMP/run.yaml 'from samples' --samples 4 --parquet DS/rows"), False),
}


def _content(folder):
    return files_below(folder), sorted(folder.rglob("*"))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_links_of_a_dataset(name, link, tmp_path):
    command, begun = COMMANDS[name]
    path, kept, home = tmp_path / "ds", tmp_path / "kept", tmp_path / "home"
    write_dataset(path, random_documents(30, seed=1), shards=2)
    write_rows(tmp_path / "spans.jsonl", [{"id": "doc-1", "spans": [{"start": 0, "end": 1, "concepts": ["x"]}]}])
    (tmp_path / "names.txt").write_text("x")
    (tmp_path / "raw.bin").write_bytes(bytes(range(1, 251)) * 500)
    if name == "verify":  # which writes the checksums of what was adopted
        shutil.rmtree(path)
        _command("adopt TMP/raw.bin --dtype u2 --out DS")(path)
    (tmp_path / "run.yaml").write_text(f"{{seq_len: 8, datasets: {{a: {{path: {path}}}}}}}")
    if begun:
        _write_column(path)
    shutil.copytree(path, kept)
    with _written(path) as names:
        command(path)
    made = tmp_path / "made"
    path.rename(made)
    assert names
    for name in sorted(names):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept, path)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        place, like = path / name, kept / name if (kept / name).exists() else made / name
        if not place.parent.is_dir():
            place.parent.mkdir(parents=True)
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        if like.is_dir():
            shutil.copytree(like, home / "own")
            for one in (home / "own").rglob("*"):
                if one.is_file():
                    one.write_bytes(b"my own work" * 999)
        else:
            (home / "own").write_bytes(b"my own work" * 999)
        if (home / "own").is_dir() and link is os.link:
            continue
        link(home / "own", place)
        before = _content(home)
        with suppress(ConceptloaderError):
            command(path)
        assert _content(home) == before, name
