// Answers a list of questions (JSON on standard input) about orders and datasets with a list of answers (JSON).

import { readFileSync } from "node:fs";
import { blake2b, xxh3 } from "./hashes.mjs";
import { Refused, canonical, parse } from "./json.mjs";
import { Dataset } from "./format.mjs";
import { Order, bestTree, deriveKey, mix64, permute, rankSamples, smallestIntegers, unpermute } from "./order.mjs";

const hex = (bytes) => Buffer.from(bytes).toString("hex");

const ANSWERS = {
  hashes: (data) => {
    const bytes = Buffer.from(data, "hex");
    return [xxh3(bytes), hex(blake2b(bytes, 16)), hex(blake2b(bytes, 8, "conceptloader"))];
  },
  canonical: (text) => canonical(parse(text)),
  keys: (parts) => deriveKey(...parts),
  // The public Permutation: forward, and back again.
  permutation: ([n, key, positions]) => {
    const forward = positions.map((i) => permute(i, n, mix64(key)));
    return [forward, forward.map((j) => unpermute(j, n, mix64(key)))];
  },
  tree: (weights) => {
    const tree = bestTree(smallestIntegers(weights));
    return [tree.left.map(BigInt), tree.right.map(BigInt), tree.p, tree.deviation];
  },
  // For each trainer's sample: dataset, draw, epoch, window, and its global index twice, found forwards and backwards.
  order: (question) => {
    const { seed, block, datasets, phases, skips, samples, inverse } = Object.fromEntries(question);
    const order = new Order({ seed, block, datasets, phases, skips });
    return samples.map((t) => {
      const [name, draw, epoch, window] = order.sample(t);
      const back = inverse ? [order.globalIndex(t), order.indexOf(name, epoch, window)] : [];
      return [name, draw, epoch, window, ...back];
    });
  },
  ranks: ([rule, step, microBatchSize, dpSize, rank, strided]) =>
    rankSamples(rule, step, microBatchSize, dpSize, rank, strided),
  dataset: (question) => {
    const { path, ranges, ids } = Object.fromEntries(question);
    const dataset = new Dataset(path);
    const about = ([start, stop]) => {
      const [a, b] = [Number(start), Number(stop)];
      const spans = (track) => dataset.spans(track, a, b).map(([s, e, x, y, data]) => [BigInt(s), BigInt(e), x, y, hex(data)]);
      return new Map([
        ["tokens", dataset.tokens(a, b)],
        ["fields", new Map(dataset.otherFields().map((name) => [name, hex(dataset.fieldBytes(name, a, b))]))],
        ["documents", dataset.documents(a, b).map(([number, first]) => [BigInt(number), BigInt(first)])],
        ["spans", new Map([...dataset.manifest.tracks.keys()].map((track) => [track, spans(track)]))],
      ]);
    };
    return new Map([
      ["tokens", BigInt(dataset.starts.at(-1))],
      ["checksums", BigInt(dataset.checkFiles())],
      ["stream_fingerprint", dataset.streamFingerprint()],
      ["tracks_fingerprint", dataset.tracksFingerprint()],
      ["ranges", ranges.map(about)],
      ["found", ids.map((id) => dataset.findDocument(id).map(BigInt))],
    ]);
  },
};

function answer([kind, question]) {
  try {
    return ANSWERS[kind](question);
  } catch (error) {
    if (error instanceof Refused || error.code === "ENOENT") return new Map([["refused", error.message]]);
    throw error;
  }
}

process.stdout.write(canonical(parse(readFileSync(0, "utf-8")).map(answer)));
