// A reader of the conceptstream format, version 1, written from docs/format.md alone.

import { closeSync, fstatSync, openSync, readSync, readFileSync, realpathSync, statSync } from "node:fs";
import { dirname, resolve, sep } from "node:path";
import { blake2b, xxh3 } from "./hashes.mjs";
import { Refused, canonical, parse } from "./json.mjs";

const NONE = 0xffffffff;
const TYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"];
const TOKENS = ["u1", "u2", "u4", "i4", "i8"];
const MODES = ["stream-with-metadata", "token-stream", "document"];
const RESERVED = "build checksums document documents manifest shard stream token tokens".split(" ");
const MAX = 2n ** 56n;

function require(condition, what) {
  if (!condition) throw new Refused(what);
}

const hex64 = (value) => value.toString(16).padStart(16, "0");
const fingerprint = (value) => Buffer.from(blake2b(Buffer.from(canonical(value), "ascii"), 16)).toString("hex");

// Sealed JSON

function sealed(path) {
  const data = readFileSync(path);
  require(data.every((byte) => byte < 128), `${path}: not ASCII`);
  const tail = data.subarray(-36).toString("latin1");
  const found = /^,\n "checksum": "([0-9a-f]{16})"\n}\n$/.exec(tail);
  require(found && found[1] === hex64(xxh3(data.subarray(0, -36))), `${path}: the seal is broken`);
  return parse(data.toString("latin1"));
}

// Objects with known keys. A field is [kind, value if it is left out]; without the second it is mandatory.

const integer = (least, most) => (v) => typeof v === "bigint" && v >= least && v <= most;
const text = (v) => typeof v === "string";
const object = (v) => v instanceof Map;
const array = (v) => Array.isArray(v);
const checksum = (v) => text(v) && /^[0-9a-f]{16}$/.test(v);
const root = (v) => text(v) && /^[0-9a-f]{64}$/.test(v);
const orNull = (kind) => (v) => v === null || kind(v);
const columnOf = (kind, length) => (v) => array(v) && BigInt(v.length) === length && v.every(kind);

function fields(value, where, known) {
  require(object(value), `${where}: no object`);
  for (const key of value.keys()) require(Object.hasOwn(known, key), `${where}: unknown key ${key}`);
  const result = {};
  for (const [key, [kind, ...otherwise]] of Object.entries(known)) {
    require(value.has(key) || otherwise.length, `${where}: no ${key}`);
    result[key] = value.has(key) ? value.get(key) : otherwise[0];
    require(kind(result[key]), `${where}: wrong ${key}`);
  }
  return result;
}

function readManifest(path) {
  const raw = sealed(path);
  require(object(raw), "no object");
  require(raw.get("format") === "conceptstream" && raw.get("version") === 1n, `${path}: another format or version`);
  const manifest = fields(raw, "manifest", {
    format: [text], version: [integer(1n, 1n)], mode: [(v) => MODES.includes(v)], created_by: [text],
    tokenizer: [orNull(object), null], num_shards: [integer(1n, 1_000_000n)], num_tokens: [integer(1n, MAX)],
    num_documents: [integer(0n, MAX)], block_tokens: [integer(1n, 2n ** 20n)], layouts: [array],
    tracks: [object], extra: [object, new Map()], shards: [object], checksum: [checksum],
  });
  if (manifest.tokenizer) {
    const { vocab_size: size, eos_id: eos } = fields(manifest.tokenizer, "tokenizer", {
      name: [text], vocab_size: [integer(1n, 2n ** 32n)], eos_id: [orNull(integer(0n, 2n ** 32n)), null],
    });
    require(eos === null || eos < size, "tokenizer: wrong eos_id");
  }
  const names = [...manifest.tracks.keys()];
  require(names.length <= 16 && (manifest.mode !== "token-stream" || !names.length), "tracks: too many");
  for (const name of names) {
    requireName(name);
    const track = fields(manifest.tracks.get(name), name, {
      codec: [text], parameters: [object], vocabulary: [orNull(object), null], max_items: [orNull(integer(0n, MAX)), null],
      max_spans: [columnOf(integer(0n, 2n ** 20n), 21n)],
    });
    require(track.max_spans.every((n, k) => k === 0 || n >= track.max_spans[k - 1]), `${name}: max_spans falls`);
    track.vocabulary &&= fields(track.vocabulary, `${name}: vocabulary`, {
      path: [text], size: [integer(0n, MAX)], checksum: [checksum], count: [integer(0n, 2n ** 32n)],
      groups: [array, []], details: [orNull(object), null],
    });
    if (track.vocabulary?.details) {
      track.vocabulary.details = fields(track.vocabulary.details, `${name}: details`, {
        path: [text], size: [integer(0n, MAX)], checksum: [checksum],
      });
    }
    if (track.vocabulary?.groups?.length) requireGroups(track.vocabulary, name);
    if (track.codec === "concepts") requireConcepts(track.parameters, name);
    manifest.tracks.set(name, track);
  }
  checkLayouts(manifest.layouts, names);
  manifest.shards = readShards(manifest, names);
  return manifest;
}

function requireGroups({ groups, count }, name) {
  const good = groups.every((group) => array(group) && group.length === 2 && text(group[0]) && group[0] && integer(0n, count)(group[1]));
  require(good && new Set(groups.map(([group]) => group)).size === groups.length, `${name}: wrong groups`);
  require(groups.reduce((sum, [, n]) => sum + n, 0n) === count, `${name}: groups do not fit`);
}

function requireConcepts(parameters, name) {
  const known = { ids: ["u2", "u4"], scores: ["f2", "f4"] };
  for (const [key, value] of parameters) {
    require(Object.hasOwn(known, key) && known[key].includes(value), `${name}: parameters`);
  }
}

function requireName(name) {
  require(/^[a-z][a-z0-9_]{0,62}$/.test(name) && !RESERVED.includes(name), `wrong name ${name}`);
}

function checkLayouts(layouts, tracks) {
  const other = (layout) => layout.filter(([name]) => name !== "token" && !tracks.includes(name.replace(/_id$/, "")));
  require(layouts.length > 0, "no layouts");
  for (const layout of layouts) {
    require(array(layout) && layout.every((pair) => columnOf(text, 2n)(pair)), "wrong layout");
    const names = layout.map(([name]) => name);
    require(names[0] === "token" && new Set(names).size === names.length, "layout: wrong names");
    names.slice(1).forEach(requireName);
    layout.forEach(([name, type]) => require((name === "token" ? TOKENS : TYPES).includes(type), `${name}: type ${type}`));
  }
  const sorted = (layout) => canonical(other(layout).map(String).sort());
  require(layouts.every((layout) => sorted(layout) === sorted(layouts[0])), "layouts with different fields");
}

function readShards(manifest, names) {
  const count = manifest.num_shards;
  const column = (kind) => [columnOf(kind, count)];
  const shards = fields(manifest.shards, "shards", {
    path: column(text), tokens: column(integer(0n, MAX)), documents: column(integer(0n, 2n ** 48n)),
    layout: column(integer(0n, BigInt(manifest.layouts.length - 1))), offset: column(integer(0n, MAX)),
    token_checksum: column(orNull(checksum)), tracks: [object], files: [object],
    foreign: [orNull(columnOf(orNull(object), count)), null],
    document_root: [orNull(columnOf(orNull(root), count)), null],
  });
  const all = (value) => Array(Number(count)).fill(value);
  shards.tracks = fields(shards.tracks, "shards: tracks", Object.fromEntries(names.map((name) => [name, [object]])));
  const kinds = ["stream.bin", "documents.bin", "documents.ids", "documents.hash"];
  for (const name of names) {
    shards.tracks[name] = fields(shards.tracks[name], name, {
      encoding: column((v) => ["dense", "spans", null].includes(v)),
      records: column(integer(0n, BigInt(NONE - 1))), entries: column(integer(0n, 2n ** 48n)),
    });
    kinds.push(`${name}.index`, `${name}.data`, `${name}.spans`);
  }
  const none = { size: all(null), checksum: all(null), sample: all(null), path: all(null) };
  const known = Object.fromEntries(kinds.map((kind) => [kind, [object, null]]));
  known["stream.bin"] = [object];
  for (const key of shards.files.keys()) require(Object.hasOwn(known, key), `files: unknown key ${key}`);
  shards.present = kinds.filter((kind) => shards.files.has(kind));
  shards.files = Object.fromEntries(kinds.map((kind) => [kind, shards.files.has(kind)
    ? fields(shards.files.get(kind), kind, {
        size: column(orNull(integer(0n, MAX))), checksum: column(orNull(checksum)), sample: column(orNull(checksum)),
        path: [columnOf(orNull(text), count), all(null)],
      })
    : none]));
  shards.foreign = (shards.foreign ?? all(null)).map((entry) => entry && fields(entry, "foreign", {
    kind: [text], mtime_ns: [integer(0n, 2n ** 63n - 1n)], index: [orNull(text), null], index_checksum: [orNull(checksum), null],
  }));
  checkSizes(manifest, shards);
  return shards;
}

function checkSizes(manifest, shards) {
  const sum = (column) => column.reduce((a, b) => a + b, 0n);
  require(sum(shards.tokens) === manifest.num_tokens && sum(shards.documents) === manifest.num_documents, "wrong sums");
  shards.tokens.forEach((tokens, shard) => {
    const size = (kind) => shards.files[kind].size[shard];
    const sampled = Object.values(shards.files).every((column) => (column.size[shard] === null) === (column.sample[shard] === null));
    require(sampled, `${shard}: a file without a sample, or a sample without a file`);
    const blocks = (tokens + manifest.block_tokens - 1n) / manifest.block_tokens;
    const layout = manifest.layouts[Number(shards.layout[shard])];
    const stream = shards.offset[shard] + tokens * BigInt(itemSize(layout));
    const enough = shards.foreign[shard] ? size("stream.bin") >= stream : size("stream.bin") === stream;
    require(size("stream.bin") !== null && enough, `stream.bin ${shard}: size`);
    require(shards.foreign[shard] || shards.offset[shard] === 0n, `stream.bin ${shard}: offset`);
    const n = shards.documents[shard];
    const borders = size("documents.bin") === null ? n === 0n : size("documents.bin") === 8n * (n + 1n) + 8n * (blocks + 1n);
    require(borders && (n > 0n || tokens === 0n || size("documents.bin") === null), `documents.bin ${shard}: size`);
    require(manifest.mode !== "document" || size("documents.bin") !== null, `documents.bin ${shard} is missing`);
    require((size("documents.ids") === null) === (size("documents.hash") === null), `ids ${shard}: one file alone`);
    for (const [name, track] of Object.entries(shards.tracks)) {
      const encoding = track.encoding[shard];
      const expect = (kind, there, value) =>
        require(size(`${name}.${kind}`) === (there ? value : null), `${name}.${kind} ${shard}: size`);
      expect("index", encoding !== null, 8n * (track.records[shard] + 1n));
      expect("data", encoding !== null, size(`${name}.data`) ?? -1n);
      expect("spans", encoding === "spans", 12n * track.entries[shard] + 8n * (blocks + 1n));
      const dense = layout.some(([field, type]) => field === `${name}_id` && type === "u4");
      require(encoding !== "dense" || dense, `${name} ${shard}: no field ${name}_id`);
      const entries = track.entries[shard];
      require(encoding === "spans" ? tokens === 0n || entries > 0n : entries === 0n, `${name} ${shard}: entries`);
    }
  });
}

const width = (type) => Number(type[1]);
const itemSize = (layout) => layout.reduce((size, [, type]) => size + width(type), 0);

// The bytes that a sample checksum is made of.
function sampled(data) {
  const n = data.length;
  if (n <= 32768) return data;
  const m = Math.floor(n / 4096) - 2;
  const pages = Array.from({ length: 6 }, (_, j) => {
    const [low, high] = [j, j + 1].map((k) => 1 + Math.floor((k * m) / 6));
    const key = Buffer.alloc(16);
    key.writeBigUInt64LE(BigInt(n));
    key.writeBigUInt64LE(BigInt(j), 8);
    const page = low + Number(xxh3(key) % BigInt(high - low));
    return data.subarray(4096 * page, 4096 * (page + 1));
  });
  return Buffer.concat([data.subarray(0, 4096), ...pages, data.subarray(n - 4096)]);
}

export class Dataset {
  constructor(path, roots = [dirname(resolve(path))]) {
    this.root = resolve(path);
    this.roots = [this.root, ...roots].map((root) => resolve(root) + sep);
    this.realRoots = this.roots.map((root) => realpathSync(root) + sep);
    this.manifest = readManifest(resolve(path, "manifest.json"));
    this.shards = this.manifest.shards;
    this.block = Number(this.manifest.block_tokens);
    this.starts = [0];
    this.firstDocuments = [0];
    this.shards.tokens.forEach((tokens, shard) => {
      this.starts.push(this.starts.at(-1) + Number(tokens));
      this.firstDocuments.push(this.firstDocuments.at(-1) + Number(this.shards.documents[shard]));
    });
    for (const kind of this.shards.present) {
      this.shards.files[kind].size.forEach((size, shard) => size !== null && this.inside(this.name(kind, shard), false));
    }
  }

  // Files

  name(kind, shard) {
    return this.shards.files[kind].path[shard] ?? `${this.shards.path[shard]}.${kind}`;
  }

  inside(name, follow) {
    const path = resolve(this.root, name);
    const [found, roots] = follow ? [realpathSync(path), this.realRoots] : [path, this.roots];
    require(roots.some((root) => found.startsWith(root)), `${path}: outside of the directories that are allowed`);
    return path;
  }

  read(kind, shard, offset, size) {
    const path = this.inside(this.name(kind, shard), true);
    const foreign = this.shards.foreign[shard];
    const file = openSync(path, "r");
    try {
      const found = fstatSync(file, { bigint: true });
      require(found.size === this.shards.files[kind].size[shard], `${path}: ${found.size} bytes`);
      require(kind !== "stream.bin" || !foreign?.mtime_ns || found.mtimeNs === foreign.mtime_ns, `${path}: time of modification`);
      const data = Buffer.alloc(size);
      require(readSync(file, data, 0, size, offset) === size, `${path}: short read`);
      return data;
    } finally {
      closeSync(file);
    }
  }

  u8(kind, shard, offset, count) {
    const data = this.read(kind, shard, offset, 8 * count);
    return Array.from({ length: count }, (_, i) => Number(data.readBigUInt64LE(8 * i)));
  }

  // Compares all checksums; returns how many there are.
  checkFiles() {
    let count = 0;
    const compare = (path, data, expected) => {
      require(hex64(xxh3(data)) === expected, `${path}: checksum`);
      count++;
    };
    for (const [kind, column] of Object.entries(this.shards.files)) {
      column.checksum.forEach((expected, shard) => {
        if (expected === null) return;
        compare(this.name(kind, shard), this.read(kind, shard, 0, Number(column.size[shard])), expected);
      });
    }
    for (const [kind, column] of Object.entries(this.shards.files)) {
      column.sample.forEach((expected, shard) => {
        if (expected === null) return;
        compare(this.name(kind, shard), sampled(this.read(kind, shard, 0, Number(column.size[shard]))), expected);
      });
    }
    this.shards.token_checksum.forEach((expected, shard) => {
      if (expected === null) return;
      const { items, layout } = this.items(shard, 0, Number(this.shards.tokens[shard]));
      compare("tokens", Buffer.concat(items.map((at) => at.subarray(0, width(layout[0][1])))), expected);
    });
    for (const track of this.manifest.tracks.values()) {
      if (track.vocabulary === null) continue;
      const path = this.inside(track.vocabulary.path, true);
      const data = readFileSync(path);
      require(BigInt(statSync(path).size) === track.vocabulary.size, `${path}: size`);
      compare(path, data, track.vocabulary.checksum);
      if (track.vocabulary.details) {
        const more = this.inside(track.vocabulary.details.path, true);
        const lines = readFileSync(more);
        require(BigInt(lines.length) === track.vocabulary.details.size, `${more}: size`);
        compare(more, lines, track.vocabulary.details.checksum);
      }
      const names = parse(data.toString("utf-8"));
      require(columnOf(text, track.vocabulary.count)(names), `${path}: no list of ${track.vocabulary.count} strings`);
    }
    return count;
  }

  // Tokens and fields

  *parts(start, stop) {
    for (let shard = 0; shard + 1 < this.starts.length; shard++) {
      const [a, b] = [Math.max(start, this.starts[shard]), Math.min(stop, this.starts[shard + 1])];
      if (a < b) yield [shard, a - this.starts[shard], b - this.starts[shard]];
    }
  }

  items(shard, a, b) {
    const layout = this.manifest.layouts[Number(this.shards.layout[shard])];
    const size = itemSize(layout);
    const data = this.read("stream.bin", shard, Number(this.shards.offset[shard]) + a * size, (b - a) * size);
    return { layout, size, items: Array.from({ length: b - a }, (_, i) => data.subarray(i * size, (i + 1) * size)) };
  }

  // The bytes of one field of tokens [a, b) of a shard, one Buffer a token.
  column(field, shard, a, b) {
    const { layout, items } = this.items(shard, a, b);
    const place = layout.findIndex(([name]) => name === field);
    const offset = itemSize(layout.slice(0, place));
    return items.map((item) => item.subarray(offset, offset + width(layout[place][1])));
  }

  tokens(start, stop) {
    const found = [];
    for (const [shard, a, b] of this.parts(start, stop)) {
      const type = this.manifest.layouts[Number(this.shards.layout[shard])][0][1];
      const value = (bytes) =>
        type === "i8" ? bytes.readBigInt64LE() : BigInt(type === "i4" ? bytes.readInt32LE() : bytes.readUIntLE(0, width(type)));
      found.push(...this.column("token", shard, a, b).map(value));
    }
    return found;
  }

  otherFields() {
    const dense = [...this.manifest.tracks.keys()].map((track) => `${track}_id`);
    return this.manifest.layouts[0].map(([name]) => name).filter((name) => name !== "token" && !dense.includes(name));
  }

  fieldBytes(name, start, stop) {
    return Buffer.concat([...this.parts(start, stop)].flatMap(([shard, a, b]) => this.column(name, shard, a, b)));
  }

  // Documents

  lowAndHigh(kind, shard, table, a, b) {
    const [first, last] = [Math.floor(a / this.block), Math.ceil(b / this.block)];
    const entries = this.u8(kind, shard, table + 8 * first, last - first + 1);
    return [entries[0], entries.at(-1)];
  }

  // [number, first token] of the documents that hold tokens [start, stop).
  documents(start, stop) {
    const found = [];
    for (const [shard, a, b] of this.parts(start, stop)) {
      const n = Number(this.shards.documents[shard]);
      if (this.shards.files["documents.bin"].size[shard] === null) continue;
      const [low, high] = this.lowAndHigh("documents.bin", shard, 8 * (n + 1), a, b);
      require(low <= high && high <= n, "documents.bin: wrong block table");
      const first = this.u8("documents.bin", shard, 8 * low, Math.min(high + 1, n) - low + 1);
      for (let i = 0; i + 1 < first.length; i++) {
        require(first[i] <= first[i + 1], "documents.bin: first decreases");
        const holds = first[i] < first[i + 1] && first[i] < b && first[i + 1] > a;
        if (holds) found.push([this.firstDocuments[shard] + low + i, this.starts[shard] + first[i]]);
      }
    }
    return found;
  }

  documentId(shard, i) {
    const [begin, end] = this.u8("documents.ids", shard, 8 * i, 2);
    const behind = 8 * (Number(this.shards.documents[shard]) + 1);
    return this.read("documents.ids", shard, behind + begin, end - begin).toString("utf-8");
  }

  findDocument(id) {
    const wanted = xxh3(Buffer.from(id, "utf-8"));
    const found = [];
    this.shards.files["documents.hash"].size.forEach((size, shard) => {
      if (size === null) return;
      const table = this.read("documents.hash", shard, 0, Number(size));
      for (let at = 0; at < table.length; at += 16) {
        const i = Number(table.readBigUInt64LE(at + 8));
        const matches = table.readBigUInt64LE(at) === wanted && this.documentId(shard, i) === id;
        if (matches) found.push(this.firstDocuments[shard] + i);
      }
    });
    return found;
  }

  // Tracks

  // [first, end, record] of runs of a shard, at least of those that touch tokens [a, b).
  runs(track, shard, a, b) {
    const encoding = this.shards.tracks[track].encoding[shard];
    const tokens = Number(this.shards.tokens[shard]);
    let entries = [];
    if (encoding === "dense") {
      const records = this.column(`${track}_id`, shard, 0, tokens).map((bytes) => bytes.readUInt32LE());
      entries = records.map((record, i) => [i, record]).filter(([i, record]) => i === 0 || records[i - 1] !== record);
    } else if (encoding === "spans") {
      const count = Number(this.shards.tracks[track].entries[shard]);
      const [low, high] = this.lowAndHigh(`${track}.spans`, shard, 12 * count, a, b);
      require(low <= high && high <= count, `${track}.spans: wrong block table`);
      const stop = Math.min(high + 2, count);
      const data = this.read(`${track}.spans`, shard, 12 * low, 12 * (stop - low));
      for (let at = 0; at < data.length; at += 12) entries.push([Number(data.readBigUInt64LE(at)), data.readUInt32LE(at + 8)]);
    }
    const runs = entries.map(([first, record], i) => [first, entries[i + 1]?.[0] ?? tokens, record]);
    for (const [first, end, record] of runs) {
      require(first < end, `${track}: runs that do not increase`);
      require(record === NONE || BigInt(record) < this.shards.tracks[track].records[shard], `${track}: record ${record}`);
    }
    return runs;
  }

  record(track, shard, number) {
    const [begin, end] = this.u8(`${track}.index`, shard, 8 * number, 2);
    require(begin <= end, `${track}.index: offsets that fall`);
    return this.read(`${track}.data`, shard, begin, end - begin);
  }

  // [start, end, begins before, ends after, bytes of the record], relative to `start`.
  spans(track, start, stop) {
    const found = [];
    for (const [shard, a, b] of this.parts(start, stop)) {
      const shift = this.starts[shard] - start;
      for (const [first, end, record] of this.runs(track, shard, a, b)) {
        if (record === NONE || first >= b || end <= a) continue;
        const cut = [Math.max(first, a) + shift, Math.min(end, b) + shift];
        found.push([...cut, first < a, end > b, this.record(track, shard, record)]);
      }
    }
    return found;
  }

  // Fingerprints

  streamFingerprint() {
    const { shards } = this;
    const document = this.manifest.mode === "document";
    const streams = shards.tokens.map((tokens, shard) => {
      const { index_checksum: index, mtime_ns: time } = shards.foreign[shard] ?? { index_checksum: null, mtime_ns: 0n };
      const { size, sample } = shards.files["stream.bin"];
      const unknown = [size[shard], shards.offset[shard], index, time, sample[shard]];
      const type = this.manifest.layouts[Number(shards.layout[shard])][0][1];
      return [type, tokens, shards.token_checksum[shard] ?? unknown];
    });
    const borders = document ? [shards.documents, shards.files["documents.bin"].checksum] : null;
    return fingerprint(["conceptstream", 1n, document, streams, borders]);
  }

  tracksFingerprint() {
    const tracks = new Map();
    for (const [name, { codec, parameters, vocabulary }] of this.manifest.tracks) {
      const concepts = vocabulary && [vocabulary.checksum, vocabulary.groups, vocabulary.details?.checksum ?? null];
      tracks.set(name, [codec, parameters, concepts]);
    }
    const files = new Map();
    for (const [kind, { size, checksum: sums }] of Object.entries(this.shards.files)) {
      if (size.some((bytes) => bytes !== null)) files.set(kind, [size.map((bytes) => bytes ?? -1n), sums]);
    }
    return fingerprint(["conceptstream", 1n, tracks, files]);
  }
}
