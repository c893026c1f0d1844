"""What can happen to a file on its way."""

import json
import os

import xxhash

from conceptloader.format.spec.jsonfile import dump_json
from conceptloader.storage.sample import sample_checksum

NUMBERS = [0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def _position(data, rng):
    return int(rng.integers(0, max(1, len(data))))


def flip_bits(data, rng):
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if changed:
            changed[_position(data, rng)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def overwrite(data, rng):
    at = _position(data, rng)
    new = rng.bytes(int(rng.integers(1, 17)))[: len(data) - at]
    return data[:at] + new + data[at + len(new) :]


def number(data, rng):
    """An aligned word becomes one that programs stumble over."""
    size = int(rng.choice([4, 8]))
    at = _position(data, rng) // size * size
    value = NUMBERS[int(rng.integers(len(NUMBERS)))]
    if rng.random() < 0.5 and at + size <= len(data):
        value = int.from_bytes(data[at : at + size], "little") + int(rng.integers(-2, 3))
    word = (value % (1 << 8 * size)).to_bytes(size, "little")[: len(data) - at]
    return data[:at] + word + data[at + len(word) :]


def truncate(data, rng):
    return data[: _position(data, rng)]


def extend(data, rng):
    return data + (rng.bytes(int(rng.integers(1, 65))) if rng.random() < 0.5 else bytes(int(rng.integers(1, 65))))


def zero_block(data, rng):
    at, size = _position(data, rng), int(rng.choice([1, 8, 64, 4096]))
    size = min(size, len(data) - at)
    return data[:at] + bytes(size) + data[at + size :]


def move_block(data, rng):
    """A block is written to the wrong place."""
    a, b, size = _position(data, rng), _position(data, rng), int(rng.integers(1, 65))
    block = data[a : a + size][: len(data) - b]
    return data[:b] + block + data[b + len(block) :]


KINDS = [
    flip_bits, overwrite, number, truncate, extend, zero_block, move_block,
]  # fmt: skip


def mutate(files, rng):
    """(description, the files that change; empty content None is not used: a deleted file maps to b"" and no path)."""
    name = str(rng.choice(sorted(files)))
    dice = rng.random()
    if dice < 0.03:
        return f"delete {name}", {name: _GONE}
    if dice < 0.13:
        kind = name.split(".", 1)[-1]
        others = [other for other in sorted(files) if other != name and other.split(".", 1)[-1] == kind]
        if others:
            other = str(rng.choice(others))
            return f"swap {name}, {other}", {name: files[other], other: files[name]}
    change = KINDS[int(rng.integers(len(KINDS)))]
    return f"{change.__name__} {name}", {name: change(files[name], rng)}


_GONE = b"\0gone\0"


def write(directory, files):
    for name, data in files.items():
        if data is _GONE:
            os.unlink(directory / name)
        else:
            (directory / name).write_bytes(data)


def unseal(data):
    value = json.loads(data)
    value.pop("checksum", None)
    return value


def with_matching_manifest(files, changed):
    """The manifest rewritten so that sizes and checksums agree with the damage: as if a writer had been wrong."""
    manifest = unseal(files["manifest.json"])
    columns = manifest["shards"]["files"]
    for name, data in changed.items():
        shard, _, kind = name.partition(".")
        if kind in columns and shard in manifest["shards"]["path"]:
            i = manifest["shards"]["path"].index(shard)
            columns[kind]["size"][i] = len(data)
            columns[kind]["checksum"][i] = xxhash.xxh3_64_hexdigest(data)
            columns[kind]["sample"][i] = sample_checksum(len(data), lambda at, size, data=data: data[at : at + size])
            if kind == "stream.bin":
                manifest["shards"]["token_checksum"][i] = None
    return {**changed, "manifest.json": dump_json(manifest)}


def mutate_value(data, rng):
    """A sealed JSON file in which one value is another one; the seal is right again."""
    value = unseal(data)
    places = list(_places(value, ()))
    path = places[int(rng.integers(len(places)))]
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    old = holder[path[-1]]
    choices = [
        *NUMBERS,
        -1,
        None,
        True,
        "",
        "../../x",
        "/etc/passwd",
        "a\0b",
        [],
        {},
        1.5,
        [old],
        {"a": old},
    ]
    if isinstance(old, int):
        choices = [*choices, old + 1, old - 1, old * 2, old + 8, old - 8] * 2
    if isinstance(old, str):
        choices += [old + "x", old[::-1], "x" * 500]
    dice = int(rng.integers(len(choices) + 1))
    if dice == len(choices) and isinstance(holder, dict):
        del holder[path[-1]]
    else:
        holder[path[-1]] = choices[dice % len(choices)]
    return f"{'.'.join(map(str, path))}: {old!r:.40} -> {holder.get(path[-1]) if isinstance(holder, dict) else '?'}", (
        dump_json(value)
    )


def _places(value, path):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))
