// Text with its spans: windows, documents; when they are seen.
import {
  address, ask, card, choice, count, field, h, hue, label, later, link, pager, plural, problem, quiet, s, swatch,
} from "./dom.js";

const LEVELS = 6; // lines below the text

export async function windowView(parameters, about) {
  const found = await ask("window", parameters);
  const to = (i) => address("window", { d: found.d, i, s: parameters.s, hide: parameters.hide });
  const random = () => { location.hash = to(Math.floor(Math.random() * found.count)); };
  const one = found.by_document ? "document" : "window";
  return h("article", {},
    h("div", { class: "tools" },
      datasets(about, found.d, (d) => address("window", { d, hide: parameters.hide })),
      pager(one, found.i, found.count, to),
      h("button", { "data-key": "r", onclick: random }, "random"),
      !about.run && one === "window" && field("tokens", found.seq_len, (size) => address("window", { s: size }))),
    found.excluded && h("p", { class: "warning" },
      "Excluded: it keeps its position in the order, and is not read."),
    textView(found, parameters, "window"),
    about.run && seen({ d: found.d, i: found.i }, about, `this ${one}`));
}

export async function documentView(parameters, about) {
  const found = await ask("document", parameters);
  const to = (n) => address("document", { d: found.d, n });
  const end = found.from + found.stop - found.start;
  const same = found.same_id.slice(0, 20).map((n) => [" ", h("a", { href: to(n) }, count(n))]);
  return h("article", {},
    h("div", { class: "tools" },
      datasets(about, found.d, (d) => address("document", { d })),
      pager("document", found.n, found.count, to),
      field("by id", found.id ?? "", (id) => address("document", { d: found.d, id }), { size: 18 }),
      field("search", "", (q) => address("search", { d: found.d, q }), { size: 18, type: "search" })),
    quiet(`${plural(found.length, "token")}, here from ${count(found.from)} to ${count(end)}. `,
      end < found.length && link("Continue. ", "document", { d: found.d, n: found.n, from: end }),
      found.windows.map((i) => link(`Window ${count(i)}`, "window", { d: found.d, i })),
      same.length > 1 && [" Documents with this id:", same]),
    textView(found, parameters, "document"),
    about.run && seen({ d: found.d, n: found.n }, about, "this document"));
}

export async function searchView(parameters, about) {
  const to = (more) => address("search", { d: parameters.d, q: parameters.q, ...more });
  const tools = h("div", { class: "tools" },
    datasets(about, parameters.d ?? about.sources[0].name, (d) => to({ d })),
    field("search", parameters.q ?? "", (q) => to({ q }), { size: 24, type: "search", "data-key": "/" }));
  if (!parameters.q) return h("article", {}, tools);
  const item = (d, hit) => h("li", {}, link(label(hit.id ?? `document ${count(hit.n)}`), "document", { d, n: hit.n }),
    " ", hit.before, h("span", { class: "found" }, hit.match), hit.after);
  let found = await ask("search", parameters);
  const { from } = found;
  const goesOn = () => found.next !== null && !found.hits.length;
  const place = h("div", goesOn() ? { "aria-busy": "true" } : {});
  const draw = () => {
    const end = found.next ?? found.count;
    place.replaceChildren(card(`In ${plural(found.hits.length, "document")} of ${count(from)} to ${count(end - 1)}`,
      h("progress", { max: found.count, value: end, "aria-label": "documents read" }),
      h("ul", { class: "contexts" }, found.hits.map((hit) => item(found.d, hit))),
      found.next === null ? quiet("All documents were read.")
        : link("Continue", "search", { d: found.d, q: found.q, from: found.next }, { class: "button", "data-key": "ArrowRight" })));
  };
  // Answers are short; where one has nothing, the next one is asked for, until another page is opened.
  const read = async () => {
    while (place.isConnected && goesOn()) {
      found = await ask("search", { d: found.d, q: found.q, from: found.next });
      draw();
    }
    place.removeAttribute("aria-busy");
  };
  draw();
  setTimeout(() => read().catch((error) => place.replaceChildren(problem(error))));
  return h("article", {}, tools, place);
}

export const datasets = (about, name, to) => (
  about.sources.length > 1 && choice("dataset", about.sources.map((one) => one.name), name, to));

const isConcept = (span) => typeof span.c === "number";
const keyOf = (span) => (isConcept(span) ? `${span.t}:${span.c}` : span.t);

// A colour for each concept of a window, its own one unless that is too near to the colour of one with more tokens.
function colours(spans) {
  const tokens = new Map();
  for (const span of spans) tokens.set(keyOf(span), [(tokens.get(keyOf(span))?.[0] ?? 0) + span.e - span.s, span]);
  const found = new Map();
  for (const [key, [, span]] of [...tokens].sort((a, b) => b[1][0] - a[1][0])) {
    let one = hue(isConcept(span) ? span.c : span.t);
    const near = (other) => Math.min(Math.abs(other - one), 360 - Math.abs(other - one)) < 24;
    for (let tries = 0; tries < 15 && [...found.values()].some(near); tries++) one = (one + 47) % 360;
    found.set(key, one);
  }
  return found;
}

function textView(found, parameters, view) {
  const hidden = new Set(parameters.hide ? parameters.hide.split("|") : []);
  const chosen = colours(found.spans);
  const hueOf = (span) => chosen.get(keyOf(span));
  const tokens = found.ids.map((id, k) => h("span", { "data-k": k }, found.pieces ? found.pieces[k] : `${id} `));
  const text = h("div", { class: "text", tabindex: 0, dir: "auto", "aria-label": "text" });
  const starts = new Map(found.documents.filter((one) => one.n >= 0).map((one) => [one.start, one]));
  tokens.forEach((token, k) => {
    const here = starts.get(k);
    if (here) {
      const name = label(here.id ?? `document ${count(here.n)}`);
      text.append(h("span", { class: "document" }, here.before && "... ", link(name, "document", { d: found.d, n: here.n })));
    }
    text.append(token);
  });

  const covering = tokens.map(() => []);
  // The line of level 0 is the nearest to the text; a span that begins here has a tick at its line.
  const background = (spans, k) => [
    ...spans.filter((span) => span.level < LEVELS).flatMap((span) => {
      const [colour, at] = [`linear-gradient(hsl(${hueOf(span)} 55% 52%) 0 0) 0`, `var(--text) + ${3 * span.level}px`];
      return [`${colour} calc(${at}) / 100% 2px no-repeat`,
        span.s === k && !span.b && `${colour} calc(${at} - 3px) / 2px 4px no-repeat`];
    }),
    `linear-gradient(hsl(${hueOf(spans.at(-1))} 65% 50% / .13) 0 0) 0 0 / 100% var(--text) no-repeat`,
  ].filter(Boolean).join(", ");
  const paint = () => {
    let depth = 1;
    covering.forEach((spans) => spans.splice(0));
    for (const span of found.spans.filter((one) => !hidden.has(keyOf(one)))) {
      depth = Math.max(depth, Math.min(LEVELS, span.level + 1));
      for (let k = span.s; k < span.e; k++) covering[k].push(span);
    }
    tokens.forEach((token, k) => { token.style.background = covering[k].length ? background(covering[k], k) : ""; });
    text.style.setProperty("--levels", depth);
  };
  paint();

  const detail = h("p", { class: "detail quiet", "aria-live": "polite" }, "Point at a token, tap it, or go from span to span.");
  let at = -1; // the token that is told of
  const tell = (k) => {
    at = k;
    const chips = covering[k].map((span) => h("span", { class: "chip", style: { "--h": hueOf(span) } },
      `${span.b ? "<" : "["}${span.s}, ${span.e}${span.a ? ">" : ")"} `, label(span.n)));
    detail.replaceChildren(h("span", {}, `token ${count(found.start + k)}, id ${found.ids[k]}`), ...chips);
  };
  text.addEventListener("pointerover", (event) => {
    const k = Number(event.target.closest("[data-k]")?.dataset.k ?? NaN);
    if (!Number.isNaN(k)) tell(k);
  });
  const go = (back) => {
    const begins = (k) => covering[k].some((span) => span.s === k);
    const k = back ? tokens.findLastIndex((_, one) => one < at && begins(one)) : tokens.findIndex((_, one) => one > at && begins(one));
    if (k < 0) return;
    text.querySelector(".at")?.classList.remove("at");
    tokens[k].classList.add("at");
    tokens[k].scrollIntoView({ block: "nearest" });
    tell(k);
  };
  const toggle = (keys, on) => {
    keys.forEach((key) => (on ? hidden.delete(key) : hidden.add(key)));
    history.replaceState(null, "", address(view, { ...parameters, hide: [...hidden].join("|") }));
    paint();
  };
  return h("div", { class: "window" },
    h("div", { class: "reading" },
      !found.pieces && h("p", { class: "warning" },
        "Token IDs only: the dataset has no copy of its tokenizer. Start with --tokenizer to see text."),
      found.tokens_in_all > found.ids.length && h("p", { class: "warning" },
        `The first ${count(found.ids.length)} of ${count(found.tokens_in_all)} tokens.`),
      text, detail,
      found.spans.length > 0 && h("div", { class: "tools" },
        h("button", { "data-key": ",", onclick: () => go(true) }, "previous span"),
        h("button", { "data-key": ".", onclick: () => go(false) }, "next span"))),
    legend(found, hidden, toggle, hueOf));
}

function legend(found, hidden, toggle, hueOf) {
  const totals = new Map();
  for (const span of found.spans) {
    const one = totals.get(keyOf(span)) ?? { key: keyOf(span), span, tokens: 0 };
    totals.set(one.key, { ...one, tokens: one.tokens + span.e - span.s });
  }
  const inputs = [];
  const row = ({ key, span, tokens }) => {
    const change = () => toggle([key], input.checked);
    const input = h("input", { type: "checkbox", checked: !hidden.has(key), onchange: change });
    inputs.push(input);
    const name = isConcept(span) ? link(label(span.n), "concept", { d: found.d, t: span.t, c: span.c }) : "records";
    return h("li", {}, h("label", {}, input, swatch(hueOf(span))), name, h("span", { class: "number quiet" }, count(tokens)));
  };
  const all = (on) => {
    inputs.forEach((input) => { input.checked = on; });
    toggle([...totals.keys()], on);
  };
  return h("aside", { class: "legend" },
    found.tracks.length === 0 ? quiet("This dataset has no spans.") : h("div", { class: "tools" },
      h("button", { "data-key": "a", onclick: () => all(true) }, "all"),
      h("button", { "data-key": "n", onclick: () => all(false) }, "none")),
    found.tracks.map((track) => {
      const rows = [...totals.values()].filter((one) => one.span.t === track).sort((a, b) => b.tokens - a.tokens);
      return [h("h3", {}, label(track)), rows.length ? h("ul", {}, rows.map(row)) : quiet("no spans here")];
    }));
}

// When something is trained: a line of ticks, and the first of them as a list.
export function seen(asked, about, what) {
  return card(`When ${what} is seen`, later(ask("seen", asked), (found) => {
    if (!found.seen.length) return quiet(`Not in the first ${count(found.until)} samples.`);
    const at = (sample) => 1000 * sample / found.until;
    const here = about.run.position?.sample;
    const ticks = found.seen.map((one) => s("rect", { x: at(one.sample), width: 2.5, y: 6, height: 24, class: "tick" },
      s("title", {}, `sample ${count(one.sample)}`)));
    const times = found.seen.slice(0, 12).map((one) => h("li", {}, `sample ${count(one.sample)}, epoch ${one.epoch}, `,
      link(`window ${count(one.window)}`, "window", { d: asked.d, i: one.window }),
      one.places.map((p) => [", ", link(`step ${count(p.step)}`, "step", { n: p.step }), ` on rank ${p.dp_rank}`])));
    return [
      h("p", {}, `${found.more ? "The first " : ""}${plural(found.seen.length, "time")} in ${plural(found.until, "sample")}.`),
      s("svg", { class: "timeline", viewBox: "0 0 1000 36", preserveAspectRatio: "none", role: "img" },
        s("rect", { x: 0, width: 1000, y: 29, height: 3, class: "axis" }),
        here !== undefined && s("rect", { x: 0, width: Math.min(1000, at(here)), y: 29, height: 3, class: "past" }),
        ticks),
      h("ul", { class: "times" }, times),
    ];
  }));
}
