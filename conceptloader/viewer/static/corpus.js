// A corpus: its concepts, its statistics, its integrity.
import { address, ask, bars, card, choice, count, field, h, hue, label, later, link, percent, plural, quiet, table } from "./dom.js";
import { datasets, seen } from "./windows.js";

export async function conceptsView(parameters, about) {
  const found = await ask("concepts", parameters);
  const to = (more) => address("concepts", { d: found.d, t: found.t, q: parameters.q, ...more });
  const most = Math.max(1e-12, ...found.concepts.map((one) => one.share));
  const row = (one) => [link(label(one.name ?? one.c), "concept", { d: found.d, t: found.t, c: one.c }),
    one.share / most, one.share === null ? "not sampled" : percent(one.share), hue(one.c)];
  const of = found.whole ? "counted" : `estimated from ${count(found.read)} of ${count(found.tokens)}`;
  return h("article", {},
    h("div", { class: "tools" },
      datasets(about, found.d, (d) => address("concepts", { d, q: parameters.q })),
      found.tracks.length > 1 && choice("track", found.tracks, found.t, (t) => to({ t })),
      field("search", parameters.q ?? "", (q) => to({ q }), { size: 24, type: "search", "data-key": "/" })),
    card(`${plural(found.found, "concept")}${parameters.q ? " found" : ""}`,
      quiet(`Share of the tokens, ${of}. `,
        found.found > found.concepts.length && `The first ${count(found.concepts.length)} are shown. `,
        found.not_seen > 0 && `${count(found.not_seen)} are not among these tokens.`),
      bars(found.concepts.map(row))));
}

export async function conceptView(parameters, about) {
  const found = await ask("concept", parameters);
  const from = (window) => ({ d: found.d, t: found.t, c: found.c, from: window });
  const random = () => { location.hash = address("concept", from(Math.floor(Math.random() * found.count))); };
  const last = (found.next ?? found.count) - 1;
  return h("article", {},
    h("h1", {}, label(found.name ?? `concept ${found.c}`), h("span", { class: "quiet" }, ` in ${found.d}, track ${found.t}`)),
    later(ask("contexts", { d: found.d, t: found.t, c: found.c }), (read) => h("div", { class: "sides" },
      read.strongest.length > 0 && inContext("Strongest", read.strongest, read, found),
      inContext("Random", read.random, read, found))),
    card(`In ${plural(found.hits.length, "window")} of ${count(found.from)} to ${count(last)}`,
      h("p", { class: "tools quiet" }, found.hits.map((hit) => h("span", {},
        link(count(hit.i), "window", { d: found.d, i: hit.i }), ` ${plural(hit.tokens, "token")}`))),
      h("p", { class: "tools" },
        found.next !== null && link("Continue", "concept", from(found.next), { class: "button", "data-key": "ArrowRight" }),
        h("button", { "data-key": "r", onclick: random }, "From a random window"))),
    about.run && found.hits.length > 0
      && seen({ d: found.d, i: found.hits.map((hit) => hit.i).join(",") }, about, "one of these windows"));
}

function inContext(title, spans, read, { d }) {
  const item = (one) => h("li", {}, one.before, h("span", { class: "found" }, one.match), one.after, " ",
    one.i !== null && link(`window ${count(one.i)}`, "window", { d, i: one.i }),
    one.score !== null && h("span", { class: "quiet" }, ` score ${Number(one.score.toPrecision(3))}`));
  return card(title, quiet(`Of ${plural(read.found, "span")} that were read.`),
    spans.length > 0 ? h("ul", { class: "contexts" }, spans.map(item)) : quiet("none"));
}

export async function statsView(parameters, about) {
  const found = await ask("stats", { d: parameters.d });
  const lengths = (of) => (Object.keys(of).length
    ? table(["percentile", ...Object.keys(of)], [["tokens", ...Object.values(of)]]) : quiet("none"));
  const track = ([name, one]) => {
    const most = Math.max(1e-12, ...one.concepts.map((concept) => concept.share_of_tokens));
    const pairs = Math.max(1, ...one.pairs.map((pair) => pair.tokens));
    const concepts = one.concepts.slice(0, 30).map((concept) => [
      link(label(concept.name ?? concept.id), "concept", { d: found.d, t: name, c: concept.id }),
      concept.share_of_tokens / most, percent(concept.share_of_tokens), hue(concept.id)]);
    return card(["Track ", label(name)],
      h("p", {}, `Spans cover ${percent(one.tokens_in_spans)} of the tokens.`),
      h("h3", {}, "Tokens of a span"), lengths(one.span_lengths),
      concepts.length > 0 && [h("h3", {}, "Share of tokens by concept"), bars(concepts)],
      one.pairs.length > 0 && [h("h3", {}, "Concepts that meet at a token, in some windows"), bars(one.pairs.map((pair) => (
        [label(pair.names.join(" + ")), pair.tokens / pairs, plural(pair.tokens, "token"), hue(pair.ids[0])])))]);
  };
  return h("article", {},
    h("div", { class: "tools" }, datasets(about, found.d, (d) => address("stats", { d }))),
    quiet(found.whole ? "All documents and spans were counted."
      : "Estimated from some documents and windows, the same ones each time. conceptloader inspect --stats counts all."),
    card(`${plural(found.documents, "document")}, ${plural(found.tokens, "token")}`,
      h("h3", {}, "Tokens of a document"), lengths(found.document_lengths)),
    Object.entries(found.tracks).map(track));
}

export async function damageView(_, about) {
  const found = await ask("damage");
  const windows = (d, ends) => (ends === null ? "of documents, or none" : h("span", {},
    [...new Set(ends)].map((i, k) => [k > 0 && " to ", link(count(i), "window", { d, i })])));
  const finding = (d, one) => h("div", { class: "problem" }, one.message,
    one.tokens && [` Tokens ${count(one.tokens[0])} to ${count(one.tokens[1])}, windows `, windows(d, one.windows), "."]);
  const check = (d) => {
    const place = h("div", {});
    const start = () => place.replaceChildren(later(ask("check", { d }), (checked) => (checked.problems.length > 0
      ? checked.problems.map((one) => finding(d, one))
      : h("p", {}, `No problems: sizes and spot checksums of ${plural(checked.shards, "shard")}, in ${checked.seconds.toFixed(1)} s. `,
        "conceptloader verify --full reads every byte."))));
    return h("div", {}, h("p", {}, h("button", { onclick: start }, "Check ", label(d))), place);
  };
  const none = about.run ? "The configuration excludes no ranges." : "None: a dataset without a run has no configuration.";
  const rows = found.excluded.map((one) => [label(one.d), one.tokens.map(count).join(" to "), windows(one.d, one.windows)]);
  return h("article", {},
    card("Tokens never read", rows.length ? table(["dataset", "tokens", "windows without loss"], rows) : quiet(none)),
    card("Files", quiet("Compares the size and a spot checksum of each file with the manifest."),
      about.sources.map((one) => check(one.name))));
}
