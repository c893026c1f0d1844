"""Everything that parses bytes from outside, as functions of bytes. Only errors of ours may come out of them."""

import contextlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet
import zstandard

import conceptloader as cl
from conceptloader.config.exclude import read_excluded
from conceptloader.config.schema import ExcludeConfig
from conceptloader.format.spec.jsonfile import dump_json, parse_json
from conceptloader.ingest.adopt.adopt import adopt
from conceptloader.ingest.annotate.annotate import annotate
from conceptloader.ingest.build.builder import build_dataset
from conceptloader.ingest.build.options import Options
from conceptloader.ingest.parquet import row_groups
from conceptloader.ingest.records.columns import Columns
from conceptloader.ingest.records.inputs import find_sources
from conceptloader.order.progress.runlog import RunLog
from conceptloader.order.progress.spec import OrderSpec
from conceptloader.testing import random_documents, write_dataset
from tests.hostile import files
from tests.hostile.states import States


@dataclass(frozen=True)
class Template:
    """A small sound dataset; its files are what mutations begin with."""

    path: Path

    @classmethod
    def make(cls, path):
        write_dataset(path, random_documents(6, seed=0, mean_length=6), encoding="spans")
        return cls(path)

    def copy(self, directory, leave_out):
        out = directory / "ds"
        out.mkdir(exist_ok=True)
        for file in self.path.iterdir():
            target = out / file.name
            if file.name != leave_out and not target.exists():
                target.hardlink_to(file)
        (out / leave_out).unlink(missing_ok=True)
        return out


def resealed(data):
    """The seal of a JSON file made right again, if it is JSON: a checksum stops accidents, not people."""
    try:
        value = parse_json(data, "input")
    except cl.errors.FormatError:
        return data
    if not isinstance(value, dict) or not value:
        return data
    value.pop("checksum", None)
    try:
        return dump_json(value) if value else data
    except ValueError:  # 1e999
        return data


def manifest(template):
    def run(directory, data):
        path = template.copy(directory, "manifest.json")
        (path / "manifest.json").write_bytes(resealed(data))
        ds = cl.open_dataset(path, verify_files=False)
        for track in ds.tracks:
            ds.vocabulary(track)
        ds.read(0, min(ds.num_tokens, 100), sorted(ds.tracks), documents=True)

    return run


def shard_report(template):
    def run(directory, data):
        path = template.copy(directory, "00000.shard.json")
        (path / "manifest.json").unlink(missing_ok=True)
        (path / "00000.shard.json").write_bytes(resealed(data))
        cl.writing.finalize(path)

    return run


def build_file(template):
    def run(directory, data):
        path = template.copy(directory, "build.json")
        (path / "build.json").write_bytes(resealed(data))
        cl.writing.open_writer(path).is_finished(0)

    return run


def vocabulary(template):
    """With the manifest in agreement: the content is what is hostile."""
    import xxhash

    name = "concepts.vocabulary.json"

    def run(directory, data):
        path = template.copy(directory, name)
        (path / name).write_bytes(data)
        head = json.loads((template.path / "manifest.json").read_bytes())
        head.pop("checksum")
        entry = head["tracks"]["concepts"]["vocabulary"]
        entry["size"], entry["checksum"] = len(data), xxhash.xxh3_64_hexdigest(data)
        (path / "manifest.json").unlink(missing_ok=True)
        (path / "manifest.json").write_bytes(dump_json(head))
        names = cl.open_dataset(path).vocabulary("concepts")
        assert len(names) == entry["count"]
        assert all(isinstance(name, str) for name in names)

    return run


def yaml(directory, data):
    (directory / "run.yaml").write_bytes(data)
    cl.load_config(directory / "run.yaml")


def ingest(source, out):
    columns = Columns(text=None, tokens="tokens", tracks={"concepts": "spans"}, metadata="metadata")
    options = Options(columns=columns, vocab_size=500, eos=1, vocabulary={"concepts": ["a", "b"]})
    build_dataset(find_sources([source]), out, options)
    assert cl.verify(out, full=True) == []


def jsonl(directory, data):
    (directory / "x.jsonl").write_bytes(data)
    ingest(directory / "x.jsonl", directory / "ds")


def quarantine(directory, data):
    (directory / "bad.txt").write_bytes(data)
    entry = ExcludeConfig(dataset="a", token_file=str(directory / "bad.txt"))
    read_excluded([entry], {"a": SimpleNamespace(num_tokens=1000)})


def run_log(directory, data):
    log = RunLog(directory)
    log.path.write_bytes(data)
    log.read()
    for start in log.starts[:3]:
        log.spec(start).build()


def order_spec(directory, data):
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    OrderSpec.from_dict(value).build().sample(0)


def megatron_index(directory, data):
    (directory / "x.idx").write_bytes(data)
    (directory / "x.bin").write_bytes(bytes(80))
    adopt([directory / "x"], directory / "ds")
    cl.verify(directory / "ds", full=True)


def npy(directory, data):
    (directory / "x.npy").write_bytes(data)
    adopt([directory / "x.npy"], directory / "ds", document_end=0)
    cl.verify(directory / "ds", full=True)


def parquet(directory, data):
    (directory / "x.parquet").write_bytes(data)
    if ends_pyarrow(directory / "x.parquet"):
        return  # an uncaught exception of its C++: design/threat-model.md
    ingest(directory / "x.parquet", directory / "ds")


def ends_pyarrow(file):
    """Whether looking at the footer ends the process, tried in one of its own."""
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with contextlib.suppress(Exception):
            row_groups(str(file))
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def compressed(directory, data):
    (directory / "x.jsonl.zst").write_bytes(data)
    ingest(directory / "x.jsonl.zst", directory / "ds")


def annotations(template):
    def run(directory, data):
        (directory / "rows.jsonl").write_bytes(data)
        wanted = {"track": "new", "vocabulary": ["a", "b"], "span_unit": "token"}
        roots = [directory, template.path.parent]
        annotate(template.path, [directory / "rows.jsonl"], directory / "ds", roots=roots, **wanted)
        assert cl.verify(directory / "ds", full=True, roots=roots) == []

    return run


def checksums(directory, data):
    (directory / "x.bin").write_bytes(bytes(80))
    adopt([directory / "x.bin"], directory / "ds", dtype="u2", document_end=0)
    (directory / "ds" / "checksums.json").write_bytes(resealed(data))
    cl.verify(directory / "ds", full=True)


def datatrove_index(directory, data):
    (directory / "x.ds").write_bytes(bytes(80))
    (directory / "x.ds.index").write_bytes(data)
    adopt([directory / "x.ds"], directory / "ds")
    cl.verify(directory / "ds", full=True)


def made_inputs(template):
    """Sound inputs for targets that have no files in the corpus."""
    rows = [
        {"tokens": [1, 2, 3], "id": "a", "spans": [{"start": 0, "end": 2, "concepts": ["a"]}], "metadata": {"k": 1}}
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows * 3).encode()
    table = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows * 3), table)
    places = [{"document": d, "start": 0, "end": 1, "concepts": ["a", "b"]} for d in range(3)]
    seal = {
        "format": "conceptstream-checksums",
        "version": 1,
        "files": {"../x.bin": {"size": 80, "checksum": "0" * 16}},
    }
    return {
        **States(template.path).sound(),
        "engine": files.Places(template.path.parent, files.ENGINE).sound(),
        "records": files.Places(template.path.parent, files.CODECS).sound(),
        "store": [b"", bytes(20), bytes([222] * 20), bytes([0, 0, 245, 0, 0, 235, 0, 0, 0, 225, 0, 0, 215, 0, 205])],
        "parquet": [table.getvalue()],
        "compressed": [zstandard.compress(lines)],
        "annotations": ["".join(json.dumps(place) + "\n" for place in places).encode()],
        "checksums": [dump_json(seal)],
        "datatrove_index": [(5).to_bytes(8, "little") + (40).to_bytes(8, "little")],
    }


def targets(template):
    return {
        **States(template.path).targets(),
        "engine": files.engine(files.Places(template.path.parent, files.ENGINE)),
        "records": files.records(files.Places(template.path.parent, files.CODECS)),
        "store": files.store(template.path),
        "parquet": parquet,
        "compressed": compressed,
        "annotations": annotations(template),
        "checksums": checksums,
        "datatrove_index": datatrove_index,
        "manifest": manifest(template),
        "shard_report": shard_report(template),
        "build_file": build_file(template),
        "vocabulary": vocabulary(template),
        "yaml": yaml,
        "jsonl": jsonl,
        "quarantine": quarantine,
        "run_log": run_log,
        "order_spec": order_spec,
        "megatron_index": megatron_index,
        "npy": npy,
    }
