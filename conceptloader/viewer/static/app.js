// The frame: the page for an address, the keys, error messages.
import { ask, h, link, problem, quiet, table } from "./dom.js";
import { conceptView, conceptsView, damageView, statsView } from "./corpus.js";
import { mixtureView, overview, stepView } from "./run.js";
import { documentView, searchView, windowView } from "./windows.js";

// page: its function, and its place in the navigation.
const VIEWS = {
  overview: [overview, "Overview"], window: [windowView, "Windows"], document: [documentView, "Documents"],
  search: [searchView, null, "document"],
  concepts: [conceptsView, "Concepts"], concept: [conceptView, null, "concepts"], stats: [statsView, "Statistics"],
  mixture: [mixtureView, "Mixture", "", true], step: [stepView, "Steps", "", true], damage: [damageView, "Integrity"],
};
// What one sees there.
const SAYS = {
  overview: "Datasets, their tracks, and where the run is.",
  window: "A training sample: its text, with the spans that annotate it. The lines below the text are spans, the innermost next to it.",
  document: "A document of the input, with its spans.",
  search: "Documents with a text in them.",
  concepts: "How much of the text each concept annotates. Follow one to its spans.",
  concept: "Where a concept stands: its spans in their context, and the windows that hold them.",
  stats: "Lengths of documents and spans, and which concepts meet.",
  mixture: "Which share of the run each dataset gives, by the weights and phases of the configuration.",
  step: "The samples of one step, by rank, with their documents and concepts.",
  damage: "What the run leaves out as corrupt, and a check of the files.",
};
const KEYS = [
  ["1 ... 8", "the pages"], ["\u2190 \u2192", "previous, next"], ["r", "a random one"],
  ["/", "type a number or a search"], ["a, n", "all spans, none"], [", .", "previous span, next"], ["?", "this list"],
];
const main = document.getElementById("main");
const keys = document.getElementById("keys");
let about;
let turn = 0;

async function show() {
  const mine = ++turn;
  const [name, query] = location.hash.slice(1).split("?");
  const view = name || "overview";
  main.setAttribute("aria-busy", "true");
  let content;
  try {
    about ??= await ask("about");
    if (!Object.hasOwn(VIEWS, view)) throw new Error(`there is no page ${view}: follow a link above`);
    content = await VIEWS[view][0](Object.fromEntries(new URLSearchParams(query)), about);
    content.prepend(quiet(SAYS[view]));
  } catch (error) {
    content = problem(error);
  }
  if (mine !== turn) return; // another page was opened meanwhile
  if (about) frame(view);
  main.replaceChildren(content);
  main.removeAttribute("aria-busy");
  main.dataset.shown = location.hash;
  performance.mark("shown");
}

function frame(view) {
  document.title = `${view} - ${about.title}`;
  document.getElementById("title").replaceChildren(h("bdi", {}, about.title));
  const current = VIEWS[view]?.[2] || view;
  const shown = Object.entries(VIEWS).filter(([, [, text, , ofRun]]) => text && (about.run || !ofRun));
  document.getElementById("nav").replaceChildren(
    ...shown.map(([one, [, text]], k) => (
      link(text, one, {}, { "data-key": k + 1, "aria-current": one === current && "page" }))),
    h("button", { "data-key": "?", title: "keys", onclick: () => keys.showModal() }, "?"));
  document.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, dialog")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const found = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!found) return;
  event.preventDefault();
  if (found.matches("input")) found.select();
  else found.click();
});
keys.append(
  h("h2", {}, "Keys"),
  table(["key", "what it does"], KEYS),
  h("form", { method: "dialog" }, h("button", {}, "close")));
window.addEventListener("hashchange", show);
show();
