// Building blocks. All text of a corpus enters the page as text nodes, by h(), and nowhere else.

// What a joiner of zero width stands between in words and emoji: no ASCII, and nothing that is unseen itself.
const JOINED = /^[^\0-\xa0\xad\u2000-\u206f\u3000\ufeff]$/;

const joins = (text, at) => "\u200c\u200d".includes(text[at]) && JOINED.test(text[at - 1]) && JOINED.test(text[at + 1]);

// Controls, marks of direction and of zero width, halves of surrogate pairs, tags: shown as what they are.
const UNSEEN = new RegExp("[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f"
  + "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\ud800-\\udfff\\u{e0000}-\\u{e0fff}]", "gu");

function visible(text) {
  const found = [];
  let last = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (joins(text, match.index)) continue;
    const code = `U+${match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    found.push(text.slice(last, match.index), element("span", { class: "unseen" }, [code]));
    last = match.index + match[0].length;
  }
  return [...found, text.slice(last)];
}

function element(tag, { svg, ...properties }, children) {
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// An element. Children are nodes, texts, numbers, lists of these; null and false are skipped.
export function h(tag, properties = {}, ...children) {
  const shown = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return element(tag, properties, shown.flatMap((child) => (child instanceof Node ? child : visible(String(child)))));
}
export const s = (tag, properties, ...children) => h(tag, { svg: true, ...properties }, ...children);

export const label = (text) => h("bdi", { class: "label" }, text);
export const quiet = (...text) => h("p", { class: "quiet" }, ...text);
export const card = (title, ...children) => h("section", { class: "card" }, h("h2", {}, title), ...children);
export const problem = (error) => h("div", { class: "problem", role: "alert" }, h("b", {}, "Not shown"), error.message);
export const count = (n) => n.toLocaleString("en-US");
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const percent = (x) => (x > 0 && x < 0.0001 ? "< 0.01 %" : `${(100 * x).toFixed(x < 0.01 ? 2 : 1)} %`);

// An answer of the server. Throws what it says is wrong.
export async function ask(name, parameters = {}) {
  let answer;
  try {
    answer = await fetch(`api/${name}?${written(parameters)}`);
  } catch {
    throw new Error("the server does not answer: start conceptloader viewer again, and open the address that it prints");
  }
  const found = await answer.json();
  if (found.error) throw new Error(found.error.message);
  return found;
}

const given = (value) => value !== undefined && value !== null && value !== "";
const written = (parameters) => new URLSearchParams(Object.entries(parameters).filter(([, value]) => given(value)));
export const address = (view, parameters = {}) => `#${view}?${written(parameters)}`.replace(/\?$/, "");
export const link = (text, view, parameters, more = {}) => h("a", { href: address(view, parameters), ...more }, text);

// What comes later, a line until then.
export function later(promise, draw) {
  const place = h("div", { class: "later", "aria-busy": "true" }, quiet("Reading ..."));
  promise.then(draw).catch(problem).then((made) => {
    place.replaceChildren(h("div", {}, made));
    place.removeAttribute("aria-busy");
  });
  return place;
}

// What is typed leads to an address.
export function field(name, value, to, more = {}) {
  const input = h("input", { value, size: 9, autocomplete: "off", spellcheck: "false", ...more });
  const submit = (event) => {
    event.preventDefault();
    location.hash = to(input.value.trim());
  };
  return h("form", { onsubmit: submit }, h("label", { class: "field" }, name, input));
}

export function choice(name, values, chosen, to) {
  const options = values.map((one) => h("option", { value: one, selected: String(one) === String(chosen) }, one));
  const change = (event) => { location.hash = to(event.target.value); };
  return h("label", { class: "field" }, name, h("select", { onchange: change }, options));
}

export function pager(name, number, stop, to) {
  const side = (text, key, target) => h("a", {
    class: "button", "data-key": key, href: target, "aria-disabled": target === undefined && "true",
  }, text);
  return [
    field(name, number, to, { inputmode: "numeric", "data-key": "/" }),
    stop !== null && h("span", { class: "quiet" }, `of ${count(stop)}`),
    side("previous", "ArrowLeft", number > 0 ? to(number - 1) : undefined),
    side("next", "ArrowRight", stop === null || number + 1 < stop ? to(number + 1) : undefined),
  ];
}

export function table(head, rows) {
  const isNumber = (cell) => typeof cell === "number" || (typeof cell === "string" && /^([<\d.,]+( %)?|-)$/.test(cell));
  const side = head.map((_, k) => rows.every((row) => isNumber(row[k])) && "number");
  const row = (tag, cells) => h("tr", {}, cells.map((cell, k) => (
    h(tag, { class: side[k] }, typeof cell === "number" ? count(cell) : cell))));
  return h("div", { class: "wide" }, h("table", {},
    h("thead", {}, row("th", head)), h("tbody", {}, rows.map((cells) => row("td", cells)))));
}

// rows: [name, share of the longest one, text, hue]
export const bars = (rows) => h("div", { class: "bars" }, rows.map(([name, share, text, colour]) => h("div", { class: "bar" },
  h("span", { class: "name" }, name),
  h("span", { class: "track" }, h("span", { class: "fill", style: { width: `${100 * share}%`, "--h": colour } })),
  h("span", { class: "value" }, text))));

// A colour that a concept keeps: those of neighbouring numbers, the most frequent ones, are far apart.
export function hue(key) {
  let number = key;
  if (typeof key !== "number") {
    number = 0;
    for (const c of String(key)) number = (number * 31 + c.codePointAt(0)) % 9973;
  }
  return Math.round((number * 137.508 + 225) % 360);
}
export const swatch = (colour) => h("span", { class: "swatch", style: { "--h": colour } });
