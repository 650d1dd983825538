"use strict";

const COLOURS = ["#0969da", "#bf3989", "#1a7f37", "#9a6700", "#8250df", "#cf222e", "#1b7c83", "#6e7781"];
const EVERY_MS = 5000;
// The least that the chart's time axis spans.
const LEAST_S = 600;
let chart = null;

const $ = (id) => document.getElementById(id);
const share = (x) => (x === null ? "–" : `${(100 * x).toFixed(1)} %`);
const number = (x, digits = 2) => (x === null || x === undefined ? "–" : x.toFixed(digits));
const whole = (x) => (x === null || x === undefined ? "–" : x.toLocaleString("en"));
const small = (x) => (x === null ? "–" : x < 0.001 ? x.toExponential(1) : x.toFixed(3));

// A cell is text, or {text, class, title, href}. Text is never taken for HTML.
function cell(content, tag) {
  const made = document.createElement(tag);
  const { text, className, title, href } = typeof content === "object" && content !== null ? content : { text: content };
  const inner = href ? document.createElement("a") : document.createElement("span");
  if (href) inner.href = href;
  inner.textContent = text ?? "–";
  if (className === "number") made.className = className;
  else if (className) inner.className = className;
  if (title) made.title = title;
  made.append(inner);
  return made;
}

function table(id, heads, rows) {
  const head = document.createElement("tr");
  heads.forEach((each) => head.append(cell(each, "th")));
  const body = rows.map((row) => {
    const line = document.createElement("tr");
    row.forEach((each) => line.append(cell(each, "td")));
    return line;
  });
  if (!rows.length) {
    const line = document.createElement("tr");
    const nothing = cell("nothing yet", "td");
    nothing.colSpan = heads.length;
    line.append(nothing);
    body.push(line);
  }
  $(id).replaceChildren(head, ...body);
}

const right = (text) => ({ text, className: "number" });

function tiles(data) {
  $("alarm").textContent = data.alarm ? "ALARM" : "quiet";
  $("alarm").className = `big ${data.alarm ? "bad" : "good"}`;
  const bets = data.audits.reduce((sum, each) => sum + each.ranks, 0);
  $("alarm-note").textContent = `${whole(bets)} tokens bet on`;
  const finished = data.requests.filter((each) => each.outcome === "finished");
  const lossless = finished.filter((each) => each.lossless).length;
  $("lossless").textContent = finished.length ? share(lossless / finished.length) : "–";
  $("lossless-note").textContent = `of the last ${finished.length} answers`;
  const rounds = data.domains.reduce((sum, each) => sum + each.rounds, 0);
  const emitted = data.domains.reduce((sum, each) => sum + each.emitted, 0);
  $("length").textContent = rounds ? number(emitted / rounds) : "–";
  $("length-note").textContent = data.break_even === null ? "break-even not known yet" : `break-even ${number(data.break_even)}`;
  $("unmeasured").textContent = share(data.unmeasured_share);
}

function draw(data) {
  const names = Object.keys(data.history.domains);
  const line = data.break_even === null ? [] : [data.history.times.map(() => data.break_even)];
  const series = [
    {},
    ...names.map((label, i) => ({ label, stroke: COLOURS[i % COLOURS.length], width: 2, spanGaps: true })),
    ...line.map(() => ({ label: "break-even", stroke: "#888", dash: [6, 4] })),
  ];
  const values = [data.history.times, ...names.map((name) => data.history.domains[name]), ...line];
  if (chart) chart.destroy();
  chart = null;
  if (!data.history.times.length) return;
  const [first, last] = [data.history.times[0], data.history.times.at(-1)];
  const width = $("chart").clientWidth;
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8883" }, ticks: { stroke: "#8883" } };
  chart = new uPlot({ width, height: 240, series, axes: [axis, { ...axis }], scales: { x: { range: () => [Math.min(first, last - LEAST_S), last] }, y: { range: (_u, _low, high) => [0, Math.max(high, 2)] } } }, values, $("chart"));
}

function show(data) {
  $("model").textContent = data.model;
  tiles(data);
  const all = data.laws.reduce((sum, each) => sum + each.emitted, 0);
  table("laws", ["law", right("tokens"), right("share"), right("rounds")],
    data.laws.map((each) => [each.law, right(whole(each.emitted)), right(share(all ? each.emitted / all : null)), right(whole(each.rounds))]));
  draw(data);
  table("domains", ["domain", right("tokens"), right("a round"), right("with a block"), right("measured"), right("accepted"), ""],
    data.domains.map((each) => {
      const below = data.break_even !== null && each.with_block !== null && each.with_block < data.break_even;
      return [each.domain, right(whole(each.emitted)), right(number(each.acceptance_length)), right(number(each.with_block)), right(number(each.measured)),
        right(share(each.drafted ? each.accepted / each.drafted : null)), below ? { text: "below break-even", className: "bad" } : ""];
    }));
  table("audits", ["law", "drafter", "domain", right("ranks"), right("p"), right("drafts"), right("p"), right("decisions"), right("p"), right("replays"), ""],
    data.audits.map((each) => [each.law, each.drafter, each.domain, right(whole(each.ranks)), right(small(each.ranks_p_value)),
      right(whole(each.drawn)), right(small(each.drawn_p_value)), right(whole(each.kept)), right(small(each.kept_p_value)), right(`${each.replays} · ${each.near_ties} near ties · ${each.faults} faults`),
      each.alarm ? { text: "ALARM", className: "bad" } : { text: "quiet", className: "good" }]));
  table("verifiers", ["verifier", "drafting", "round trips", right("active"), right("queued"), right("KV tokens"), "rounds without a block"],
    data.verifiers.map((each) => [each.replica, { text: each.drafting, className: each.drafting.startsWith("refused") ? "bad" : "" },
      Object.entries(each.round_trips).map(([name, s]) => `${name} ${(1000 * s).toFixed(1)} ms`).join(", ") || "–",
      right(whole(each.active)), right(whole(each.queued)), right(whole(each.kv_tokens)),
      each.fallbacks.map((f) => `${f.reason} ${f.rounds}`).join(", ") || "none"]));
  table("requests", ["time", "outcome", "law", "claim", "domain", right("tokens"), right("a round"), right("seconds"), "trace"],
    data.requests.map((each) => [each.time.slice(11, 19), each.outcome, each.effective_law ?? each.law,
      each.claim ? { text: each.claim, className: `tag ${each.lossless ? "good" : "bad"}`, title: (each.reasons ?? []).join(" ") } : (each.reason ?? each.error ?? ""),
      each.domain ?? "", right(whole(each.output_tokens)), right(number(each.acceptance_length)), right(number(each.seconds)),
      each.trace_url ? { text: each.trace_id.slice(0, 12), href: each.trace_url, title: each.trace_id } : (each.trace_id ?? "")]));
}

// Where keys are asked for, the browser sends the one that it was let in with. Without user and password, which
// the page's own address may hold and none that is fetched.
const NUMBERS = new URL("console/data", location.origin + location.pathname);

async function refresh() {
  try {
    const answer = await fetch(NUMBERS, { cache: "no-store" });
    if (!answer.ok) throw new Error(`the gateway answers ${answer.status}`);
    show(await answer.json());
    $("status").textContent = `as of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    $("status").textContent = `no new numbers: ${error.message}`;
  }
}

addEventListener("resize", () => chart && chart.setSize({ width: $("chart").clientWidth, height: 240 }));
refresh();
setInterval(refresh, EVERY_MS);
