// A run: its datasets, its mixture, its steps.
import {
  address, ask, bars, card, choice, count, field, h, hue, label, link, pager, percent, plural, quiet, s, swatch, table,
} from "./dom.js";

const [COLUMNS, LINES] = [8, 24]; // of weights: of a ramp, or where they are set live, there are many more phases

export async function overview(_, about) {
  return h("article", {}, about.run && runCard(about.run), about.sources.map(sourceCard));
}

function runCard(run) {
  const here = run.position;
  const unknown = run.steps ? "A planned run: no run log was given."
    : "Steps are not known: pass the run log (--run-log) or the batch size (--global-batch-size).";
  const starts = run.starts.map(([step, before, batch, micro, ranks, time, stage]) => (
    [step, before, batch.map(([, size]) => size).join(", "), micro, ranks, time, stage ?? "-"]));
  return card("Run",
    h("p", {}, `Seed ${run.seed}, order ${run.order}, drawn for ${plural(run.horizon, "sample")}`,
      run.said ? "." : " (--samples sets its length)."),
    here ? h("p", {}, "At ", link(`step ${count(here.step)}`, "step", { n: here.step }),
      `, ${plural(here.sample, "sample")} done: ${here.how}.`) : quiet(unknown),
    starts.length > 0 && table(["start at step", "samples before", "batch", "micro batch", "ranks", "time", "stage"], starts));
}

function sourceCard(one) {
  const head = ["tokens", "documents", "shards",
    one.mode === "document" ? "samples" : `windows of ${count(one.seq_len)}`, "tokenizer"];
  const facts = [one.tokens, one.documents || "no table", one.shards, one.count, label(one.tokenizer ?? "unknown")];
  const tracks = one.tracks.map(([name, codec, records, concepts]) => [label(name), codec, records, concepts ?? "-"]);
  return card(label(one.name), quiet(label(one.path)),
    table(head, [facts]),
    tracks.length > 0 && table(["track", "codec", "records", "concepts"], tracks),
    h("p", { class: "tools" },
      link("Windows", "window", { d: one.name }),
      one.documents > 0 && link("Documents", "document", { d: one.name }),
      one.concept_tracks.length > 0 && link("Concepts", "concepts", { d: one.name }),
      link("Statistics", "stats", { d: one.name })));
}

export async function mixtureView(parameters, about) {
  const found = await ask("mixture", { n: parameters.n });
  const here = about.run.position;
  const every = Math.ceil(found.phases.length / COLUMNS);
  const weights = found.phases.filter((_, k) => k % every === 0).map((phase) => [
    `from ${count(phase.start)}`, phase.weights, Object.values(phase.weights).reduce((sum, one) => sum + one, 0)]);
  const epochs = (one) => {
    const text = one.epochs.toFixed(2) + (one.limit === null ? "" : ` of ${one.limit}`);
    return one.limit !== null && one.epochs > one.limit ? h("b", {}, text) : text;
  };
  const rows = found.members.map((one, k) => [
    h("span", {}, swatch(hue(k)), one.there ? link(label(one.name), "window", { d: one.name })
      : label(`${one.name} (no longer in the configuration)`)),
    one.windows,
    ...weights.map(([, of, sum]) => (of[one.name] === undefined ? "-" : percent(of[one.name] / sum))),
    one.counts.at(-1), epochs(one),
  ]);
  return h("article", {},
    h("div", { class: "tools" },
      field("samples", found.samples, (n) => address("mixture", { n }), { inputmode: "numeric", "data-key": "/" }),
      here && h("span", { class: "quiet" }, `Now at ${count(here.sample)}: ${here.how}.`)),
    card("Share of each dataset over the run", area(found, here?.sample)),
    found.phases.some((one) => Object.keys(one.losses).length) && card("Loss of each dataset, where weights were set", losses(found)),
    card("Datasets", table(["dataset", "windows", ...weights.map(([name]) => `weight ${name}`), "samples", "epochs"], rows)),
    found.skips.length > 0 && card("Skips",
      table(["at sample", "samples skipped"], found.skips.map((skip) => [skip.at, skip.count]))));
}

function losses(found) {
  const [width, height] = [1000, 160];
  const seen = found.phases.filter((one) => one.start < found.samples);
  const all = seen.flatMap((one) => Object.values(one.losses));
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const y = (loss) => height * (1 - (loss - least) / (most - least || 1));
  const lines = found.members.map((member, k) => s("polyline", {
    points: seen.filter((one) => member.name in one.losses)
      .map((one) => `${width * one.start / found.samples},${y(one.losses[member.name])}`).join(" "),
    class: "loss", style: { "--h": hue(k) },
  }, s("title", {}, member.name)));
  return h("figure", {},
    s("svg", { class: "chart", viewBox: `0 -2 ${width} ${height + 4}`, preserveAspectRatio: "none", role: "img" }, lines),
    h("figcaption", {}, h("span", {}, `${most.toPrecision(4)} to ${least.toPrecision(4)}, from above`)));
}

function area(found, here) {
  const [width, height] = [1000, 240];
  const at = (x) => width * x / found.samples;
  const share = (one, k) => (one.counts[k + 1] - one.counts[k]) / (found.x[k + 1] - found.x[k]);
  let below = found.x.slice(1).map(() => 0);
  const edge = (ys) => ys.flatMap((y, k) => [found.x[k], found.x[k + 1]].map((x) => `${at(x)},${height * (1 - y)}`));
  const areas = found.members.map((one, k) => {
    const above = below.map((y, j) => y + share(one, j));
    const points = [...edge(above), ...edge(below).reverse()].join(" ");
    below = above;
    return s("polygon", { points, class: "area", style: { "--h": hue(k) } }, s("title", {}, one.name));
  });
  const mark = (x, name, text) => s("line", { x1: at(x), x2: at(x), y1: 0, y2: height, class: name }, s("title", {}, text));
  const all = found.phases.filter((one) => one.start > 0 && one.start < found.samples);
  const phases = all.length > LINES ? [] : all;
  return h("figure", {},
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" },
      areas, phases.map((one) => mark(one.start, "phase", `phase from sample ${one.start}${one.why && ` (${one.why})`}`)),
      here <= found.samples && mark(here, "now", `now: sample ${here}`)),
    h("figcaption", {}, h("span", {}, "0"),
      found.members.map((one, k) => h("span", {}, swatch(hue(k)), label(one.name))),
      h("span", {}, count(found.samples))));
}

export async function stepView(parameters, about) {
  const found = await ask("step", { n: parameters.n, rank: parameters.rank });
  const to = (n) => address("step", { ...parameters, n });
  const ofRank = (rank) => address("step", { n: found.n, rank: rank === "all" ? "" : rank });
  const ranks = [...Array(Math.min(found.ranks, 1024)).keys()];
  const cell = (one) => h("a", {
    class: "cell", href: address("window", { d: one.d, i: one.i }), style: { "--h": hue(one.k) },
    title: `sample ${one.sample}: ${one.d}, window ${one.i}, epoch ${one.epoch}, micro batch ${one.micro_batch}`,
  });
  const most = Math.max(1, ...found.concepts.map((one) => one.tokens));
  const parts = (one) => (found.documents[one.sample] ?? []).slice(0, 8).map(([n, id]) => [
    n < 0 ? "no table" : link(label(id ?? count(n)), "document", { d: one.d, n }), " "]);
  const used = new Map(found.samples.map((one) => [one.d, one.k]));
  return h("article", {},
    h("div", { class: "tools" }, pager("step", found.n, null, to), choice("rank", ["all", ...ranks], found.rank || "all", ofRank),
      field("sample", "", (n) => address("window", { n }), { inputmode: "numeric" })),
    card(`Samples ${count(found.range[0])} to ${count(found.range[1] - 1)} on ${plural(found.ranks, "rank")}`,
      ranks.map((rank) => [rank, found.samples.filter((one) => one.rank === rank)]).filter(([, own]) => own.length)
        .map(([rank, own]) => h("div", { class: "rank" }, h("span", { class: "quiet" }, `rank ${rank}`), own.map(cell))),
      found.samples.length < found.in_all && h("p", { class: "warning" },
        `The first ${count(found.samples.length)} of ${count(found.in_all)} samples; choose a rank.`),
      h("figcaption", {}, [...used].map(([name, k]) => h("span", {}, swatch(hue(k)), label(name))))),
    found.problems.map((one) => h("p", { class: "problem" }, h("b", {}, `Sample ${one.sample} cannot be read`), one.message)),
    found.concepts.length > 0 && card(`Concepts of ${plural(found.traced, "sample")}`, bars(found.concepts.map((one) => (
      [label(one.name), one.tokens / most, plural(one.tokens, "token"), hue(one.c)])))),
    card("Documents", table(["sample", "rank", "micro batch", "dataset", "window", "epoch", "documents"],
      found.samples.slice(0, found.traced).map((one) => [one.sample, one.rank, one.micro_batch, label(one.d),
        link(count(one.i), "window", { d: one.d, i: one.i }), one.epoch, parts(one)]))));
}
