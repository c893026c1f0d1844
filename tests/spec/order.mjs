// The order of samples, versions 1 and 2, written from docs/order.md alone. Plain and slow: every function is one of the page.

import { blake2b } from "./hashes.mjs";
import { Refused, byCodePoint, shortest } from "./json.mjs";

const MASK = (1n << 64n) - 1n;
const HALF = 1n << 63n;
const GOLDEN = 0x9e3779b97f4a7c15n;
const MIX_A = 0xbf58476d1ce4e5b9n;
const MIX_B = 0x94d049bb133111ebn;

function require(condition, what) {
  if (!condition) throw new Refused(what);
}

// Keys

export function mix64(x) {
  x = ((x ^ (x >> 30n)) * MIX_A) & MASK;
  x = ((x ^ (x >> 27n)) * MIX_B) & MASK;
  return x ^ (x >> 31n);
}

const epochKey = (key, number) => mix64((key + mix64((number + GOLDEN) & MASK)) & MASK);

export function deriveKey(...parts) {
  const input = parts.map((part) => {
    const text = Buffer.from(String(part), "utf-8");
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    return Buffer.concat([Buffer.from(typeof part === "bigint" ? "i" : "s"), length, text]);
  });
  return Buffer.from(blake2b(Buffer.concat(input), 8, "conceptloader")).readBigUInt64LE();
}

// Permutations

function keyedShuffle(n, key) {
  const items = Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Number((mix64((key + BigInt(i) * GOLDEN) & MASK) * BigInt(i + 1)) >> 64n);
    [items[i], items[j]] = [items[j], items[i]];
  }
  return items;
}

let table = { n: 0n, key: 0n, items: [] }; // the last one made

function shuffleTable(n, key) {
  if (table.n !== n || table.key !== key) table = { n, key, items: keyedShuffle(Number(n), key) };
  return table.items;
}

function round(x, key) {
  x = ((x + key) * MIX_A) & MASK;
  x = ((x ^ (x >> 32n)) * MIX_B) & MASK;
  return x >> 32n;
}

function feistel(i, n, key, rounds, back) {
  const bits = BigInt((n - 1n).toString(2).length >> 1);
  const a = ((n - 1n) >> bits) + 1n;
  do {
    let [left, right] = [i >> bits, i & ((1n << bits) - 1n)];
    for (const r of rounds) {
      const changeLeft = () => {
        const value = (round(right, (key + r * GOLDEN) & MASK) * a) >> 32n;
        left = (left + (back ? a - value : value)) % a;
      };
      if (!back) changeLeft();
      right ^= round(left, (key + (r + 1n) * GOLDEN) & MASK) >> (32n - bits);
      if (back) changeLeft();
    }
    i = (left << bits) + right;
  } while (i >= n);
  return i;
}

export function permute(i, n, key) {
  if (n <= 1024n) return BigInt(shuffleTable(n, key)[Number(i)]);
  return feistel(i, n, key, [0n, 2n, 4n, 6n], false);
}

export function unpermute(j, n, key) {
  if (n <= 1024n) return BigInt(shuffleTable(n, key).indexOf(Number(j)));
  return feistel(j, n, key, [6n, 4n, 2n, 0n], true);
}

// Weights

function greatestCommonDivisor(a, b) {
  while (b > 0n) [a, b] = [b, a % b];
  return a;
}

function fraction(weight) {
  if (typeof weight === "bigint") return [weight, 1n];
  require(typeof weight === "number" && Number.isFinite(weight) && weight > 0, `weight ${weight}`);
  const { digits, exponent } = shortest(weight);
  const power = exponent - (digits.length - 1);
  return power < 0 ? [BigInt(digits), 10n ** BigInt(-power)] : [BigInt(digits) * 10n ** BigInt(power), 1n];
}

export function smallestIntegers(weights) {
  const fractions = weights.map(fraction);
  const unit = fractions.reduce((lcm, [, below]) => (lcm * below) / greatestCommonDivisor(lcm, below), 1n);
  const scaled = fractions.map(([above, below]) => (above * unit) / below);
  const total = scaled.reduce((a, b) => a + b, 0n);
  for (const w of scaled) require(w > 0n && w << 40n >= total, `weight ${w} of ${total}`);
  const common = scaled.reduce(greatestCommonDivisor);
  return scaled.map((w) => w / common);
}

// The tree of a phase

function oneOver(weight) {
  const shift = BigInt(weight.toString(2).length + 60);
  let quotient = (1n << shift) / weight; // 60 or 61 bits, the last of which stands for all behind it
  if (quotient * weight !== 1n << shift) quotient |= 1n;
  return Number(quotient) * 2 ** -Number(shift);
}

function critical(leaves) {
  const kept = [];
  let worst = -1;
  const falling = leaves.sort((x, y) => (x.w === y.w ? y.above - x.above : x.w < y.w ? 1 : -1));
  for (const leaf of falling) {
    const value = Number(leaf.w) * leaf.above;
    if (value > worst) {
      worst = value;
      kept.push(leaf);
    }
  }
  return kept;
}

function partner(nodes, lookahead) {
  if (lookahead === 0 || nodes.length === 2) return 1;
  let [best, bestValue] = [1, Infinity];
  for (let k = 1; k < Math.min(17, nodes.length); k++) {
    const both = nodes[0].weight + nodes[k].weight;
    const ahead = lookahead / Number(both);
    let value = -1;
    for (const x of [nodes[0], nodes[k]]) {
      for (const { w, above } of x.critical) value = Math.max(value, Number(w) * (above + x.inverse + ahead));
    }
    if (value < bestValue) [best, bestValue] = [k, value];
  }
  return best;
}

function makeTree(weights, lookahead) {
  const n = weights.length;
  const node = (weight, age, child, leaves) => ({ weight, age, child, critical: leaves, inverse: oneOver(weight) });
  const before = (x, y) => (x.weight === y.weight ? x.age - y.age : x.weight < y.weight ? -1 : 1);
  const nodes = weights.map((w, k) => node(w, k, ~k, [{ w, above: 0 }])).sort(before);
  const tree = { left: [], right: [], p: [], root: n > 1 ? 0 : ~0 };
  for (let made = 0; made < n - 1; made++) {
    const [heavy] = nodes.splice(partner(nodes, lookahead), 1);
    const light = nodes.shift();
    const both = light.weight + heavy.weight;
    const v = n - 2 - made;
    [tree.left[v], tree.right[v]] = [heavy.child, light.child];
    tree.p[v] = ((heavy.weight << 65n) + both) / (2n * both);
    const leaves = [light, heavy].flatMap((x) => x.critical.map(({ w, above }) => ({ w, above: above + x.inverse })));
    const joined = node(both, n + made, v, critical(leaves));
    const place = nodes.findIndex((x) => before(joined, x) < 0);
    nodes.splice(place < 0 ? nodes.length : place, 0, joined);
  }
  tree.deviation = Math.max(...nodes[0].critical.map(({ w, above }) => Number(w) * above)) / 2;
  return tree;
}

export function bestTree(weights) {
  const trees = [0, 1.5, 2, 2.5].map((lookahead) => makeTree(weights, lookahead));
  return trees.reduce((best, tree) => (tree.deviation < best.deviation ? tree : best));
}

const wentLeft = (j, p) => (j * p + HALF) >> 64n;

function treeLocate(tree, j) {
  let v = tree.root;
  while (v >= 0) {
    const before = wentLeft(j, tree.p[v]);
    if (wentLeft(j + 1n, tree.p[v]) > before) [j, v] = [before, tree.left[v]];
    else [j, v] = [j - before, tree.right[v]];
  }
  return { leaf: ~v, draw: j };
}

function treePosition(tree, leaf, draw) {
  let child = ~leaf;
  while (child !== tree.root) {
    const isLeft = tree.left.includes(child);
    const v = (isLeft ? tree.left : tree.right).indexOf(child);
    const scaled = (draw << 64n) + HALF;
    draw = isLeft ? (scaled + tree.p[v] - 1n) / tree.p[v] - 1n : scaled / ((1n << 64n) - tree.p[v]);
    child = v;
  }
  return draw;
}

function treeCounts(tree, j) {
  const counts = new Map();
  const stack = [[tree.root, j]];
  while (stack.length) {
    const [v, count] = stack.pop();
    if (v < 0) {
      counts.set(~v, count);
    } else {
      const left = wentLeft(count, tree.p[v]);
      stack.push([tree.left[v], left], [tree.right[v], count - left]);
    }
  }
  return counts;
}

// What the blocks of a phase are made of: datasets by name, where there is one tree.

class Constant {
  constructor(weights) {
    this.members = [...weights.keys()].sort(byCodePoint);
    this.tree = bestTree(smallestIntegers(this.members.map((name) => weights.get(name))));
  }

  locate(j) {
    const { leaf, draw } = treeLocate(this.tree, j);
    return { name: this.members[leaf], draw };
  }

  count(name, j) {
    return treeCounts(this.tree, j).get(this.members.indexOf(name)) ?? 0n;
  }

  position(name, draw) {
    return treePosition(this.tree, this.members.indexOf(name), draw);
  }
}

// Ramps

const HALF_COSINE = [
  0n, 10340721n, 41263296n, 92469925n, 163467459n, 253572154n, 361916252n, 487456340n, 628983398n, 785134444n,
  954405657n, 1135166864n, 1325677235n, 1524102050n, 1728530372n, 1936993442n, 2147483648n,
];
const SHARES = {
  linear: [0n, 1n << 32n],
  cosine: [...HALF_COSINE, ...HALF_COSINE.slice(0, -1).reverse().map((x) => (1n << 32n) - x)],
};

class Ramp {
  constructor(earlier, later, samples, shape) {
    require(samples >= 1n && samples <= 1n << 31n && shape in SHARES, `a ramp of ${samples}, ${shape}`);
    Object.assign(this, { earlier, later });
    this.members = [...new Set([...earlier.members, ...later.members])].sort(byCodePoint);
    this.segments = [];
    const shares = SHARES[shape];
    const n = BigInt(shares.length - 1);
    let offset = HALF;
    for (let k = 0n; k < n; k++) {
      const first = (k * samples) / n;
      const length = ((k + 1n) * samples) / n - first;
      if (length === 0n) continue;
      const slope = shares[k] << 32n;
      const bend = (((shares[k + 1n] - shares[k]) << 32n) + length) / (2n * length);
      this.segments.push({ first, offset, slope, bend });
      offset += length * slope + length * length * bend;
    }
    this.segments.push({ first: samples, offset, slope: MASK, bend: 0n });
  }

  moved(j) {
    const { first, offset, slope, bend } = this.segments.findLast((segment) => segment.first <= j);
    const r = j - first;
    return (offset + r * slope + r * r * bend) >> 64n;
  }

  locate(j) {
    const moved = this.moved(j);
    const { name } = this.moved(j + 1n) > moved ? this.later.locate(moved) : this.earlier.locate(j - moved);
    return { name, draw: this.count(name, j) };
  }

  count(name, j) {
    const moved = this.moved(j);
    return this.later.count(name, moved) + this.earlier.count(name, j - moved);
  }

  position(name, draw) {
    let [low, high] = [0n, 1n << 32n];
    while (low < high) {
      const j = (low + high) / 2n;
      if (this.count(name, j + 1n) > draw) high = j;
      else low = j + 1n;
    }
    return low;
  }
}

// Blocks, phases, windows, skips

export class Order {
  // datasets: Map name -> windows; phases: [start, Map name -> weight], or with [samples, shape] of a ramp; skips: [at, count]; integers as BigInt.
  constructor({ seed, block, datasets, phases, skips }) {
    require(block >= 1n && block <= 65536n, `block ${block}`);
    require(phases.length && phases[0][0] === 0n, "no phase at 0");
    phases.forEach(([start], k) => require(k === 0 || start > phases[k - 1][0], `phase at ${start}`));
    for (const [name, size] of datasets) require(size >= 1n && size <= HALF, `${name}: ${size} windows`);
    const few = 1n << 62n;
    for (const [at, count] of skips) require(at >= 0n && at < few && count >= 1n, `skip of ${count} at ${at}`);
    require(skips.reduce((sum, [, count]) => sum + count, 0n) < few, "too many skipped samples");
    Object.assign(this, { seed, block, datasets, skips });
    this.held = {};
    this.keys = new Map([...datasets.keys()].map((name) => [name, deriveKey(seed, "window order", name)]));
    this.phases = [];
    let [earlier, settled] = [undefined, 0n];
    phases.forEach(([start, weights, ramp], k) => {
      for (const name of weights.keys()) require(datasets.has(name), `no dataset ${name}`);
      const later = new Constant(weights);
      if (ramp) {
        require(k > 0 && settled <= start, `a ramp at ${start}`);
        settled = start + ramp[0];
        this.begin(start, new Ramp(earlier, later, ...ramp));
        if (k + 1 === phases.length || settled < phases[k + 1][0]) this.begin(settled, later);
      } else {
        settled = start;
        this.begin(start, later);
      }
      earlier = later;
    });
  }

  begin(start, stream) {
    const none = () => new Map([...this.datasets.keys()].map((name) => [name, 0n]));
    const base = this.phases.length ? this.drawsBefore(start) : none();
    this.phases.push({ start, stream, base, key: deriveKey(this.seed, "mixture block", start) });
  }

  phaseOf(g) {
    return this.phases.findLast((phase) => phase.start <= g);
  }

  blockOrder(phase, b) {
    if (this.held.phase === phase && this.held.b === b) return this.held.order;
    const size = Number(this.block);
    const strict = Array.from({ length: size }, (_, s) => phase.stream.locate(b * this.block + BigInt(s)));
    const next = new Map();
    for (const { name, draw } of strict) if (!next.has(name)) next.set(name, draw);
    const order = keyedShuffle(size, epochKey(phase.key, b)).map((s) => {
      const { name } = strict[s];
      const draw = next.get(name);
      next.set(name, draw + 1n);
      return { name, draw };
    });
    this.held = { phase, b, order };
    return order;
  }

  locate(g) {
    const phase = this.phaseOf(g);
    const [b, r] = [(g - phase.start) / this.block, (g - phase.start) % this.block];
    const { name, draw } = this.blockOrder(phase, b)[Number(r)];
    return { name, draw: phase.base.get(name) + draw };
  }

  // Draws of each dataset before g: the first sample from g on, if the last phase went on, tells it for whole blocks.
  drawsBefore(g) {
    const phase = this.phases.at(-1);
    const counts = new Map(phase.base);
    const [whole, rest] = [(g - phase.start) / this.block, (g - phase.start) % this.block];
    for (const name of phase.stream.members) {
      counts.set(name, counts.get(name) + phase.stream.count(name, whole * this.block));
    }
    if (rest) {
      for (const { name } of this.blockOrder(phase, whole).slice(0, Number(rest))) {
        counts.set(name, counts.get(name) + 1n);
      }
    }
    return counts;
  }

  globalIndex(t) {
    return this.skips.reduce((g, [at, count]) => (at <= t ? g + count : g), t);
  }

  // [dataset, draw, epoch, window] of the trainer's sample t.
  sample(t) {
    const { name, draw } = this.locate(this.globalIndex(t));
    const size = this.datasets.get(name);
    const epoch = draw / size;
    return [name, draw, epoch, permute(draw % size, size, epochKey(this.keys.get(name), epoch))];
  }

  // The global sample that reads a window in an epoch of its dataset, or null.
  indexOf(name, epoch, window) {
    const size = this.datasets.get(name);
    const draw = epoch * size + unpermute(window, size, epochKey(this.keys.get(name), epoch));
    const phase = this.phases.findLast(({ base }) => base.get(name) <= draw);
    if (!phase.stream.members.includes(name)) return null;
    const d = draw - phase.base.get(name);
    const b = phase.stream.position(name, d) / this.block;
    const r = this.blockOrder(phase, b).findIndex((place) => place.name === name && place.draw === d);
    return phase.start + b * this.block + BigInt(r);
  }
}

// Steps and ranks

export function rankSamples(rule, step, microBatchSize, dpSize, rank, strided) {
  let first = 0n;
  let size = 0n;
  for (let k = 0n; k <= step; k++) {
    first += size;
    size = rule.findLast(([from]) => from <= first)[1];
  }
  require(size % (microBatchSize * dpSize) === 0n, `batch of ${size}`);
  const microBatches = [];
  for (let f = first; f < first + size; f += microBatchSize * dpSize) {
    const slots = Array.from({ length: Number(microBatchSize) }, (_, s) => BigInt(s));
    microBatches.push(slots.map((s) => (strided ? f + s * dpSize + rank : f + rank * microBatchSize + s)));
  }
  return microBatches;
}
