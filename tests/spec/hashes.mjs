// BLAKE2b by RFC 7693 and XXH3-64 (seed 0) by its specification, over Uint8Array and BigInt.

const MASK = (1n << 64n) - 1n;
const rotate = (x, left) => ((x << left) | (x >> (64n - left))) & MASK;

function read64(bytes, at) {
  return new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(at, true);
}

function read32(bytes, at) {
  return BigInt(new DataView(bytes.buffer, bytes.byteOffset).getUint32(at, true));
}

// BLAKE2b

const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const LANES = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];

function compress(h, block, counted, last) {
  const m = Array.from({ length: 16 }, (_, i) => read64(block, 8 * i));
  const v = [...h, ...IV];
  v[12] ^= BigInt(counted);
  if (last) v[14] ^= MASK;
  for (let round = 0; round < 12; round++) {
    LANES.forEach(([a, b, c, d], lane) => {
      const order = SIGMA[round % 10];
      v[a] = (v[a] + v[b] + m[order[2 * lane]]) & MASK;
      v[d] = rotate(v[d] ^ v[a], 32n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = rotate(v[b] ^ v[c], 40n);
      v[a] = (v[a] + v[b] + m[order[2 * lane + 1]]) & MASK;
      v[d] = rotate(v[d] ^ v[a], 48n);
      v[c] = (v[c] + v[d]) & MASK;
      v[b] = rotate(v[b] ^ v[c], 1n);
    });
  }
  for (let i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
}

export function blake2b(data, size, personalization = "") {
  const parameters = new Uint8Array(64);
  parameters.set([size, 0, 1, 1]);
  parameters.set(new TextEncoder().encode(personalization), 48);
  const h = IV.map((word, i) => word ^ read64(parameters, 8 * i));
  const blocks = Math.max(1, Math.ceil(data.length / 128));
  for (let b = 0; b < blocks; b++) {
    const block = new Uint8Array(128);
    block.set(data.subarray(128 * b, 128 * (b + 1)));
    compress(h, block, Math.min(data.length, 128 * (b + 1)), b === blocks - 1);
  }
  const out = new DataView(new ArrayBuffer(64));
  h.forEach((word, i) => out.setBigUint64(8 * i, word, true));
  return new Uint8Array(out.buffer, 0, size);
}

// XXH3-64

const SECRET = Uint8Array.from(
  Buffer.from(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e" +
      "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d" +
      "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc" +
      "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e",
    "hex",
  ),
);
const [P32_1, P32_2, P32_3] = [0x9e3779b1n, 0x85ebca77n, 0xc2b2ae3dn];
const P64_1 = 0x9e3779b185ebca87n;
const P64_2 = 0xc2b2ae3d27d4eb4fn;
const P64_3 = 0x165667b19e3779f9n;
const P64_4 = 0x85ebca77c2b2ae63n;
const P64_5 = 0x27d4eb2f165667c5n;
const MX_1 = 0x165667919e3779f9n;
const MX_2 = 0x9fb21c651e98df25n;

function fold(x, y) {
  const product = x * y;
  return (product & MASK) ^ (product >> 64n);
}

function avalanche(h) {
  h = ((h ^ (h >> 37n)) * MX_1) & MASK;
  return h ^ (h >> 32n);
}

function avalancheOfXxh64(h) {
  h = ((h ^ (h >> 33n)) * P64_2) & MASK;
  h = ((h ^ (h >> 29n)) * P64_3) & MASK;
  return h ^ (h >> 32n);
}

function swapBytes(x) {
  return BigInt("0x" + x.toString(16).padStart(16, "0").match(/../g).reverse().join(""));
}

const secret64 = (at) => read64(SECRET, at);

function upTo16(data) {
  const n = data.length;
  if (n > 8) {
    const low = read64(data, 0) ^ secret64(24) ^ secret64(32);
    const high = read64(data, n - 8) ^ secret64(40) ^ secret64(48);
    return avalanche((BigInt(n) + swapBytes(low) + high + fold(low, high)) & MASK);
  }
  if (n > 3) {
    let h = (read32(data, n - 4) + (read32(data, 0) << 32n)) ^ secret64(8) ^ secret64(16);
    h ^= rotate(h, 49n) ^ rotate(h, 24n);
    h = (h * MX_2) & MASK;
    h = ((h ^ ((h >> 35n) + BigInt(n))) * MX_2) & MASK;
    return h ^ (h >> 28n);
  }
  if (n > 0) {
    const word = BigInt(data[0] * 65536 + data[n >> 1] * 16777216 + data[n - 1] + n * 256);
    return avalancheOfXxh64(word ^ read32(SECRET, 0) ^ read32(SECRET, 4));
  }
  return avalancheOfXxh64(secret64(56) ^ secret64(64));
}

function upTo240(data) {
  const n = data.length;
  const mix = (at, key) => fold(read64(data, at) ^ secret64(key), read64(data, at + 8) ^ secret64(key + 8));
  let h = BigInt(n) * P64_1;
  if (n <= 128) {
    for (let i = 0; 32 * i < n; i++) h += mix(16 * i, 32 * i) + mix(n - 16 * (i + 1), 32 * i + 16);
    return avalanche(h & MASK);
  }
  for (let i = 0; i < 8; i++) h += mix(16 * i, 16 * i);
  h = avalanche(h & MASK);
  for (let i = 8; i < n >> 4; i++) h += mix(16 * i, 16 * (i - 8) + 3);
  return avalanche((h + mix(n - 16, 136 - 17)) & MASK);
}

function long(data) {
  const n = data.length;
  const accumulators = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1];
  const accumulate = (at, key) => {
    for (let i = 0; i < 8; i++) {
      const value = read64(data, at + 8 * i);
      const keyed = value ^ secret64(key + 8 * i);
      accumulators[i ^ 1] = (accumulators[i ^ 1] + value) & MASK;
      accumulators[i] = (accumulators[i] + (keyed & 0xffffffffn) * (keyed >> 32n)) & MASK;
    }
  };
  const stripes = Math.floor((n - 1) / 64);
  for (let stripe = 0; stripe < stripes; stripe++) {
    accumulate(64 * stripe, 8 * (stripe % 16));
    if (stripe % 16 === 15) {
      accumulators.forEach((a, i) => {
        accumulators[i] = ((a ^ (a >> 47n) ^ secret64(128 + 8 * i)) * P32_1) & MASK;
      });
    }
  }
  accumulate(n - 64, 121);
  let h = BigInt(n) * P64_1;
  for (let i = 0; i < 8; i += 2) {
    h += fold(accumulators[i] ^ secret64(11 + 8 * i), accumulators[i + 1] ^ secret64(19 + 8 * i));
  }
  return avalanche(h & MASK);
}

export function xxh3(data) {
  return data.length <= 16 ? upTo16(data) : data.length <= 240 ? upTo240(data) : long(data);
}
