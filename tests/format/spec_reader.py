"""What docs/format.md demands of a dataset's files, written from the page alone: no numpy, nothing of conceptloader.

The values in them are read by tests/oracle/data.py, which was written from the page, too.
"""

import hashlib
import json
import os
import struct
from pathlib import Path

import xxhash


class Refused(Exception):
    """The dataset is none that a reader may read."""


def require(condition, what):
    if not condition:
        raise Refused(what)


def sealed(path):
    """Sealed JSON: the seal is checked, repeated keys are refused."""
    data = path.read_bytes()
    head, tail = data[:-36], data[-36:]
    checksum = f"{xxhash.xxh3_64_intdigest(head):016x}".encode("ascii")
    require(data.isascii() and tail == b',\n "checksum": "' + checksum + b'"\n}\n', f"{path}: broken seal")

    def unique(pairs):
        value = dict(pairs)
        require(len(value) == len(pairs), f"{path}: repeated keys among {[key for key, _ in pairs]}")
        return value

    return json.loads(data, object_pairs_hook=unique)


MANIFEST = (
    "format version mode created_by num_shards num_tokens num_documents block_tokens layouts tracks shards checksum"
)
SHARDS = "path tokens documents layout offset token_checksum tracks files"


def keys(value, mandatory, others=""):
    """The keys that the page has, none missing, none unknown; those that are not mandatory become null."""
    require(isinstance(value, dict), f"{value!r} is no object")
    known = {*mandatory.split(), *others.split()}
    require(not set(value) - known, f"unknown keys {set(value) - known}")
    require(not set(mandatory.split()) - set(value), f"missing keys {set(mandatory.split()) - set(value)}")
    for key in others.split():
        value.setdefault(key, None)


def check_keys(manifest):
    """The tables of keys, through the whole manifest."""
    require(manifest.get("format") == "conceptstream" and manifest.get("version") == 1, "another format or version")
    keys(manifest, MANIFEST, "tokenizer extra")
    if manifest["tokenizer"] is not None:
        keys(manifest["tokenizer"], "name vocab_size", "eos_id")
    tracks, shards = manifest["tracks"], manifest["shards"]
    for track in tracks.values():
        keys(track, "codec parameters max_spans", "vocabulary max_items")
        if track["vocabulary"] is not None:
            keys(track["vocabulary"], "path size checksum count", "groups details")
            if track["vocabulary"]["details"] is not None:
                keys(track["vocabulary"]["details"], "path size checksum")
            groups = track["vocabulary"]["groups"] = track["vocabulary"]["groups"] or []
            require(not groups or sum(n for _, n in groups) == track["vocabulary"]["count"], "groups")
    keys(shards, SHARDS, "foreign")
    keys(shards["tracks"], " ".join(tracks))
    for column in shards["tracks"].values():
        keys(column, "encoding records entries")
    suffixes = [f"{track}.{kind}" for track in tracks for kind in ("index", "data", "spans")]
    absent = [
        kind for kind in ["documents.bin", "documents.ids", "documents.hash", *suffixes] if kind not in shards["files"]
    ]
    keys(shards["files"], "stream.bin", " ".join(["documents.bin", "documents.ids", "documents.hash", *suffixes]))
    for kind in absent:
        del shards["files"][kind]
    nothing = [None] * manifest["num_shards"]
    for column in shards["files"].values():
        keys(column, "size checksum sample", "path")
        column["path"] = column["path"] or nothing
        require([size is None for size in column["size"]] == [s is None for s in column["sample"]], "samples")
    shards["foreign"] = shards["foreign"] or nothing
    for entry in shards["foreign"]:
        if entry is not None:
            keys(entry, "kind mtime_ns", "index index_checksum")


class SpecReader:
    def __init__(self, path):
        self.root = path
        self.manifest = sealed(path / "manifest.json")
        check_keys(self.manifest)
        self.block = self.manifest["block_tokens"]
        self.shards = self.manifest["shards"]
        self.starts = [0]
        for count in self.shards["tokens"]:
            self.starts.append(self.starts[-1] + count)
        self.check_sizes()

    # Files

    def check_sizes(self):
        """Sizes agree with the numbers."""
        shards = self.shards
        require(self.starts[-1] == self.manifest["num_tokens"] > 0, "num_tokens")
        require(sum(shards["documents"]) == self.manifest["num_documents"], "num_documents")
        for shard, tokens in enumerate(shards["tokens"]):
            size = {kind: column["size"][shard] for kind, column in shards["files"].items()}
            table = 8 * (-(-tokens // self.block) + 1)
            layout = self.manifest["layouts"][shards["layout"][shard]]
            wanted = shards["offset"][shard] + tokens * sum(int(kind[1]) for _, kind in layout)
            stream, foreign = size["stream.bin"], shards["foreign"][shard]
            require(
                stream is not None and (stream >= wanted if foreign else stream == wanted), f"stream.bin of {shard}"
            )
            documents = shards["documents"][shard]
            without = documents == 0 and self.manifest["mode"] != "document"
            borders = size.get("documents.bin")
            require(without if borders is None else borders == 8 * (documents + 1) + table, f"documents.bin of {shard}")
            for name, track in shards["tracks"].items():
                encoding, records, entries = (track[key][shard] for key in ("encoding", "records", "entries"))
                index = None if encoding is None else 8 * (records + 1)
                require(size.get(f"{name}.index") == index, f"{name}.index of {shard}")
                spans = 12 * entries + table if encoding == "spans" else None
                require(size.get(f"{name}.spans") == spans, f"{name}.spans of {shard}")

    def path(self, kind, shard):
        other = self.shards["files"][kind]["path"][shard]
        return self.allowed(other or f"{self.shards['path'][shard]}.{kind}")

    def allowed(self, name):
        """A path of the manifest, which must lie in the directory that holds the dataset's, links followed."""
        path = Path(os.path.normpath(self.root / name))
        require(path.resolve().is_relative_to(self.root.parent.resolve()), f"{path} is outside")
        return path

    def has(self, kind, shard):
        return kind in self.shards["files"] and self.shards["files"][kind]["size"][shard] is not None

    def read(self, kind, shard, offset, size):
        path = self.path(kind, shard)
        found, foreign = path.stat(), self.shards["foreign"][shard]
        require(found.st_size == self.shards["files"][kind]["size"][shard], f"{path}: {found.st_size} bytes")
        if kind == "stream.bin" and foreign and foreign["mtime_ns"]:
            require(found.st_mtime_ns == foreign["mtime_ns"], f"{path} was modified")
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        require(len(data) == size, f"{path}: short read")
        return data

    def check_files(self):
        """Compares all checksums, those of samples too. Returns: how many files of shards there are."""
        count = 0
        for kind, column in self.shards["files"].items():
            for shard, (checksum, sample) in enumerate(zip(column["checksum"], column["sample"], strict=True)):
                if sample is not None:
                    data = self.read(kind, shard, 0, column["size"][shard])
                    require(checksum in (None, xxhash.xxh3_64_hexdigest(data)), f"{kind} of {shard}: checksum")
                    require(sample_checksum(data) == sample, f"{kind} of {shard}: sample")
                    count += 1
        for track in self.manifest["tracks"].values():
            if track["vocabulary"] is not None:
                data = self.allowed(track["vocabulary"]["path"]).read_bytes()
                require(len(data) == track["vocabulary"]["size"], "size of a vocabulary")
                require(xxhash.xxh3_64_hexdigest(data) == track["vocabulary"]["checksum"], "checksum of a vocabulary")
                require(len(json.loads(data)) == track["vocabulary"]["count"], "count of a vocabulary")
                if (more := track["vocabulary"]["details"]) is not None:
                    data = self.allowed(more["path"]).read_bytes()
                    require(len(data) == more["size"], "size of details")
                    require(xxhash.xxh3_64_hexdigest(data) == more["checksum"], "checksum of details")
                    require(data.count(b"\n") == track["vocabulary"]["count"], "lines of details")
        return count

    def external_id(self, shard, document):
        begin, end = struct.unpack("<2Q", self.read("documents.ids", shard, 8 * document, 16))
        base = 8 * (self.shards["documents"][shard] + 1)
        return self.read("documents.ids", shard, base + begin, end - begin).decode("utf-8")

    def find(self, name):
        """Numbers of the documents with this id."""
        wanted, result, before = xxhash.xxh3_64_intdigest(name.encode("utf-8")), [], 0
        for shard, count in enumerate(self.shards["documents"]):
            if self.has("documents.hash", shard):
                size = self.shards["files"]["documents.hash"]["size"][shard]
                entries = list(struct.iter_unpack("<QQ", self.read("documents.hash", shard, 0, size)))
                require(entries == sorted(entries), "documents.hash is not sorted")
                matches = [document for value, document in entries if value == wanted]
                result += [before + document for document in matches if self.external_id(shard, document) == name]
            before += count
        return result

    # Fingerprints

    def stream_fingerprint(self):
        document_mode = self.manifest["mode"] == "document"
        streams = []
        for shard, tokens in enumerate(self.shards["tokens"]):
            content = self.shards["token_checksum"][shard]
            if content is None:
                foreign = self.shards["foreign"][shard] or {"index_checksum": None, "mtime_ns": 0}
                stream, origin = self.shards["files"]["stream.bin"], [foreign["index_checksum"], foreign["mtime_ns"]]
                content = [stream["size"][shard], self.shards["offset"][shard], *origin, stream["sample"][shard]]
            layout = self.manifest["layouts"][self.shards["layout"][shard]]
            streams.append([layout[0][1], tokens, content])
        borders = (
            [self.shards["documents"], self.shards["files"]["documents.bin"]["checksum"]] if document_mode else None
        )
        return fingerprint(["conceptstream", 1, document_mode, streams, borders])

    def tracks_fingerprint(self):
        tracks = {}
        for name, track in self.manifest["tracks"].items():
            concepts = entry = track["vocabulary"]
            if entry is not None:
                concepts = [entry["checksum"], entry["groups"], entry["details"] and entry["details"]["checksum"]]
            tracks[name] = [track["codec"], track["parameters"], concepts]
        files = {
            kind: [[-1 if size is None else size for size in column["size"]], column["checksum"]]
            for kind, column in self.shards["files"].items()
            if any(size is not None for size in column["size"])
        }
        return fingerprint(["conceptstream", 1, tracks, files])


def sample_checksum(data):
    """Sample checksums."""
    if len(data) > 32768:
        m, pieces = len(data) // 4096 - 2, [data[:4096]]
        for j in range(6):
            low, high = 1 + j * m // 6, 1 + (j + 1) * m // 6
            page = low + xxhash.xxh3_64_intdigest(struct.pack("<QQ", len(data), j)) % (high - low)
            pieces.append(data[4096 * page : 4096 * (page + 1)])
        data = b"".join([*pieces, data[-4096:]])
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def fingerprint(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def column_fingerprint(path):
    """Of a NAME.column.json."""
    said = sealed(path)

    def rows(column):
        offsets = column.get("offset") or [0] * len(column["size"])
        known = zip(column["size"], offsets, column["checksum"], column["sample"], strict=True)
        return [None if size is None else [size, at, checksum or sample] for size, at, checksum, sample in known]

    holes = said["holes"] and rows(said["holes"])
    kind = ["conceptstream-column", 1, said["dtype"], said["shape"]]
    return fingerprint([*kind, said["stream_fingerprint"], rows(said["files"]), holes])
