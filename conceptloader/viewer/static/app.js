// The frame: the page for an address, the keys, error messages.
import { ask, h, link, problem, table } from "./dom.js";
import { conceptView, conceptsView, damageView, statsView } from "./corpus.js";
import { mixtureView, overview, stepView } from "./run.js";
import { documentView, windowView } from "./windows.js";

// page: its function, and its place in the navigation.
const VIEWS = {
  overview: [overview, "Overview"], window: [windowView, "Windows"], document: [documentView, "Documents"],
  concepts: [conceptsView, "Concepts"], concept: [conceptView, null, "concepts"], stats: [statsView, "Statistics"],
  mixture: [mixtureView, "Mixture", "", true], step: [stepView, "Steps", "", true], damage: [damageView, "Integrity"],
};
const KEYS = [
  ["1 ... 8", "the pages"], ["\u2190 \u2192", "previous, next"], ["r", "a random one"],
  ["/", "type a number or a search"], ["a, n", "all spans, none"], ["?", "this list"],
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
