// JSON with what the pages ask for: repeated keys are refused, integers are exact (BigInt), floats stay floats (Number),
// objects are Maps. And the canonical text that fingerprints are made of.

export class Refused extends Error {}

export function parse(text) {
  let at = 0;
  const fail = (what) => {
    throw new Refused(`JSON: ${what} at character ${at}`);
  };
  const space = () => {
    while (" \t\n\r".includes(text[at] ?? "x")) at++;
  };
  const expect = (character) => {
    if (text[at] !== character) fail(`expected ${character}`);
    at++;
  };
  function string() {
    const found = /^"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/.exec(text.slice(at));
    if (!found) fail("no string");
    at += found[0].length;
    return JSON.parse(found[0]);
  }
  function number() {
    const found = /^-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/.exec(text.slice(at, at + 10_000));
    if (!found) fail("no value");
    at += found[0].length;
    if (found[1] === undefined && found[2] === undefined) return BigInt(found[0]);
    const value = Number(found[0]);
    return Number.isFinite(value) ? value : fail("a number that is too large");
  }
  function list(close, item) {
    at++;
    space();
    if (text[at] === close) return void at++;
    for (;;) {
      item();
      space();
      if (text[at] === close) return void at++;
      expect(",");
      space();
    }
  }
  function value() {
    space();
    if (text[at] === "{") {
      const object = new Map();
      list("}", () => {
        const key = string();
        if (object.has(key)) fail(`repeated key ${key}`);
        space();
        expect(":");
        object.set(key, value());
      });
      return object;
    }
    if (text[at] === "[") {
      const items = [];
      list("]", () => items.push(value()));
      return items;
    }
    if (text[at] === '"') return string();
    for (const [word, meaning] of [["true", true], ["false", false], ["null", null]]) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return meaning;
      }
    }
    return number();
  }
  const result = value();
  space();
  if (at < text.length) fail("something behind the value");
  return result;
}

export function byCodePoint(a, b) {
  const [x, y] = [Array.from(a), Array.from(b)];
  for (let i = 0; i < Math.min(x.length, y.length); i++) {
    if (x[i] !== y[i]) return x[i].codePointAt(0) - y[i].codePointAt(0);
  }
  return x.length - y.length;
}

// The shortest decimal of a float: its digits, and the exponent of the first one.
export function shortest(x) {
  const [digits, exponent] = Math.abs(x).toExponential().split("e");
  return { digits: digits.replace(".", ""), exponent: Number(exponent) };
}

function float(x) {
  const sign = x < 0 || Object.is(x, -0) ? "-" : "";
  const { digits, exponent } = shortest(x);
  if (exponent < -4 || exponent >= 16) {
    const fraction = digits.length > 1 ? "." + digits.slice(1) : "";
    const power = String(Math.abs(exponent)).padStart(2, "0");
    return `${sign}${digits[0]}${fraction}e${exponent < 0 ? "-" : "+"}${power}`;
  }
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const padded = digits.padEnd(exponent + 2, "0");
  return `${sign}${padded.slice(0, exponent + 1)}.${padded.slice(exponent + 1)}`;
}

const SHORT = new Map([['"', '\\"'], ["\\", "\\\\"], ["\b", "\\b"], ["\f", "\\f"], ["\n", "\\n"], ["\r", "\\r"], ["\t", "\\t"]]);

function quoted(text) {
  const escape = (unit) => SHORT.get(unit) ?? "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0");
  return '"' + text.replace(/["\\]|[^ -~]/g, escape) + '"';
}

export function canonical(value) {
  if (typeof value === "string") return quoted(value);
  if (typeof value === "number") return float(value);
  if (Array.isArray(value)) return "[" + value.map(canonical).join(",") + "]";
  if (value instanceof Map) {
    const keys = [...value.keys()].sort(byCodePoint);
    return "{" + keys.map((key) => `${quoted(key)}:${canonical(value.get(key))}`).join(",") + "}";
  }
  return String(value); // null, true, false, integers
}
