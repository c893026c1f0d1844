"""A reader written from docs/format.md alone: no numpy, nothing of conceptloader. It shows that the page is enough.

It favours plainness: each method follows one section of the page.
"""

import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import xxhash

NONE = 2**32 - 1
CODES = {
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}


def sealed(path: Path) -> dict[str, Any]:
    """Sealed JSON."""
    data = path.read_bytes()
    head, tail = data[:-36], data[-36:]
    checksum = f"{xxhash.xxh3_64_intdigest(head):016x}".encode("ascii")
    assert tail == b',\n "checksum": "' + checksum + b'"\n}\n', f"{path}: broken seal"
    value: dict[str, Any] = json.loads(data)
    return value


class SpecReader:
    def __init__(self, path: Path) -> None:
        self.root = path
        self.manifest = sealed(path / "manifest.json")
        assert self.manifest["format"] == "conceptstream"
        assert self.manifest["version"] in (1, 2)
        self.block = self.manifest["block_tokens"]
        self.shards = self.manifest["shards"]
        self.starts = [0]
        for count in self.shards["tokens"]:
            self.starts.append(self.starts[-1] + count)

    # Files

    def path(self, kind: str, shard: int) -> Path:
        other = self.shards["files"][kind].get("path", [None] * len(self.shards["path"]))[shard]
        return self.root / (other or f"{self.shards['path'][shard]}.{kind}")

    def has(self, kind: str, shard: int) -> bool:
        return kind in self.shards["files"] and self.shards["files"][kind]["size"][shard] is not None

    def read(self, kind: str, shard: int, offset: int, size: int) -> bytes:
        path = self.path(kind, shard)
        assert path.stat().st_size == self.shards["files"][kind]["size"][shard], path
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(size)
        assert len(data) == size
        return data

    def u8(self, kind: str, shard: int, offset: int, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}Q", self.read(kind, shard, offset, 8 * count)))

    def check_files(self) -> int:
        """Compares all checksums. Returns: how many files there are."""
        count = 0
        for kind, column in self.shards["files"].items():
            for shard, checksum in enumerate(column["checksum"]):
                if checksum is not None:
                    assert xxhash.xxh3_64_hexdigest(self.path(kind, shard).read_bytes()) == checksum
                    count += 1
        for track in self.manifest["tracks"].values():
            if track["vocabulary"] is not None:
                data = (self.root / track["vocabulary"]["path"]).read_bytes()
                assert xxhash.xxh3_64_hexdigest(data) == track["vocabulary"]["checksum"]
                assert len(json.loads(data)) == track["vocabulary"]["count"]
                count += 1
        return count

    def check_samples(self) -> int:
        """Compares all sample checksums. Returns: how many are known."""
        count = 0
        for kind, column in self.shards["files"].items():
            for shard, sample in enumerate(column.get("sample", [])):
                if sample is not None:
                    assert sample_checksum(self.path(kind, shard).read_bytes()) == sample
                    count += 1
        return count

    # Tokens

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(shard, first, end) within the shards that hold tokens [start, stop)."""
        result = []
        for shard, base in enumerate(self.starts[:-1]):
            a, b = max(start, base), min(stop, self.starts[shard + 1])
            if a < b:
                result.append((shard, a - base, b - base))
        return result

    def items(self, shard: int, a: int, b: int) -> list[dict[str, Any]]:
        """The items [a, b) of a stream, as dictionaries."""
        layout = self.manifest["layouts"][self.shards["layout"][shard]]
        item = struct.Struct("<" + "".join(CODES[kind] for _, kind in layout))
        data = self.read("stream.bin", shard, self.shards["offset"][shard] + a * item.size, (b - a) * item.size)
        return [dict(zip((name for name, _ in layout), values, strict=True)) for values in item.iter_unpack(data)]

    def field(self, name: str, start: int, stop: int) -> list[Any]:
        return [item[name] for shard, a, b in self.parts(start, stop) for item in self.items(shard, a, b)]

    # Documents

    def documents(self, start: int, stop: int) -> list[tuple[int, int]]:
        """(first token, number) of the documents that hold tokens [start, stop), by the two reads of the page."""
        result = []
        for shard, a, b in self.parts(start, stop):
            base, n = self.starts[shard], self.shards["documents"][shard]
            if not n:
                result.append((base, -1))
                continue
            low, high = self.blocks("documents.bin", shard, 8 * (n + 1), a, b)
            first = self.u8("documents.bin", shard, 8 * low, min(high + 1, n) - low + 1)
            before = sum(self.shards["documents"][:shard])
            for i, (begin, end) in enumerate(pairwise(first)):
                if begin < end and begin < b and end > a:
                    result.append((base + begin, before + low + i))
        return result

    def blocks(self, kind: str, shard: int, table: int, a: int, b: int) -> tuple[int, int]:
        low, high = a // self.block, -(-b // self.block)
        entries = self.u8(kind, shard, table + 8 * low, high - low + 1)
        return entries[0], entries[-1]

    def external_id(self, shard: int, document: int) -> str:
        begin, end = self.u8("documents.ids", shard, 8 * document, 2)
        base = 8 * (self.shards["documents"][shard] + 1)
        return self.read("documents.ids", shard, base + begin, end - begin).decode("utf-8")

    def find(self, name: str) -> list[int]:
        """Numbers of the documents with this id."""
        wanted, result, before = xxhash.xxh3_64_intdigest(name.encode("utf-8")), [], 0
        for shard, count in enumerate(self.shards["documents"]):
            if self.has("documents.hash", shard):
                size = self.shards["files"]["documents.hash"]["size"][shard]
                entries = list(struct.iter_unpack("<QQ", self.read("documents.hash", shard, 0, size)))
                assert entries == sorted(entries)
                matches = [document for value, document in entries if value == wanted]
                result += [before + document for document in matches if self.external_id(shard, document) == name]
            before += count
        return result

    # Tracks

    def runs(self, track: str, shard: int, a: int, b: int) -> list[tuple[int, int, bool, bool, int]]:
        """(start, end, begins before, ends after, record) of the runs in tokens [a, b) of a shard, clipped."""
        encoding = self.shards["tracks"][track]["encoding"][shard]
        tokens = self.shards["tokens"][shard]
        if encoding is None:
            return []
        if encoding == "dense":
            whole = [(i, item[f"{track}_id"]) for i, item in enumerate(self.items(shard, 0, tokens))]
            entries = [(i, r) for i, r in whole if i == 0 or whole[i - 1][1] != r]
        else:
            count = self.shards["tracks"][track]["entries"][shard]
            kind = f"{track}.spans"
            low, high = self.blocks(kind, shard, 12 * count, a, b)
            entries = list(
                struct.iter_unpack("<QI", self.read(kind, shard, 12 * low, 12 * (min(high + 2, count) - low)))
            )
        ends = [first for first, _ in entries[1:]] + [tokens]
        return [
            (max(first, a), min(end, b), first < a, end > b, record)
            for (first, record), end in zip(entries, ends, strict=True)
            if record != NONE and first < b and end > a
        ]

    def record(self, track: str, shard: int, number: int) -> bytes:
        begin, end = self.u8(f"{track}.index", shard, 8 * number, 2)
        return self.read(f"{track}.data", shard, begin, end - begin)

    def spans(self, track: str, start: int, stop: int) -> list[tuple[int, int, bool, bool, bytes]]:
        """Like `runs`, for a range of the dataset and with the records' bytes."""
        result = []
        for shard, a, b in self.parts(start, stop):
            shift = self.starts[shard] - start
            for first, end, before, after, record in self.runs(track, shard, a, b):
                result.append((first + shift, end + shift, before, after, self.record(track, shard, record)))
        return result

    # Fingerprints

    def stream_fingerprint(self) -> str:
        document_mode = self.manifest["mode"] == "document"
        streams = []
        for shard, tokens in enumerate(self.shards["tokens"]):
            content = self.shards["token_checksum"][shard]
            if content is None:
                foreign = self.shards["foreign"][shard]
                size = self.shards["files"]["stream.bin"]["size"][shard]
                content = [size, self.shards["offset"][shard], foreign["index_checksum"]]
                if foreign.get("content") is not None:
                    content += [foreign["mtime_ns"], foreign["content"]]
            layout = self.manifest["layouts"][self.shards["layout"][shard]]
            streams.append([layout[0][1], tokens, content])
        borders = (
            [self.shards["documents"], self.shards["files"]["documents.bin"]["checksum"]] if document_mode else None
        )
        return fingerprint(["conceptstream", 1, document_mode, streams, borders])

    def tracks_fingerprint(self) -> str:
        tracks = {
            name: [track["codec"], track["parameters"], track["vocabulary"] and track["vocabulary"]["checksum"]]
            for name, track in self.manifest["tracks"].items()
        }
        files = {
            kind: [[-1 if size is None else size for size in column["size"]], column["checksum"]]
            for kind, column in self.shards["files"].items()
        }
        return fingerprint(["conceptstream", 1, tracks, files])


def sample_checksum(data: bytes) -> str:
    """Sample checksums."""
    if len(data) > 32768:
        m, pieces = len(data) // 4096 - 2, [data[:4096]]
        for j in range(6):
            low, high = 1 + j * m // 6, 1 + (j + 1) * m // 6
            page = low + xxhash.xxh3_64_intdigest(struct.pack("<QQ", len(data), j)) % (high - low)
            pieces.append(data[4096 * page : 4096 * (page + 1)])
        data = b"".join([*pieces, data[-4096:]])
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def fingerprint(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()
