// The Expert Lab: tokens in a row, by the rank that holds them, and below them the experts, by the rank that has them. A box
// is as high as the expert has rows; a row has the colour of its token's rank. With a capacity a box has slots for each rank's
// tokens; above the line lies, hatched, what found none. What all labs share is in page.js and sections.js.

const EX = { width: 620, pitch: 17, gap: 16, left: 14, ways: 80, bars: 120, unit: 9, over: 290, high: 118 }; // pixels

const exToken = (t, { tokens }) => EX.left + t * EX.pitch + Math.floor(t / tokens) * EX.gap + EX.pitch / 2;
// Where the box of each expert stands: [middle, width].
function exBoxes({ columns_of: columns, ranks }) {
  const wide = (EX.width - (ranks - 1) * EX.gap) / ranks, each = (wide * ranks) / columns.length, per = columns.length / ranks;
  return columns.map((_, n) => [(n % per + 0.5) * each + Math.floor(n / per) * (wide + EX.gap), Math.max(3, Math.min(56, each - 3))]);
}
const exSlots = ({ room, ep }) => (room === null ? 0 : room * ep);
const exHigh = (now, [, , kept, dropped]) => Math.max(exSlots(now), kept.length) + (dropped.length ? dropped.length + 1 : 0);

function exPicture(section, now, token, back, status) {
  const steps = Object.values(section.of), all = steps.flatMap(({ columns_of: of }) => of.map((one) => exHigh(now, one)));
  const unit = Math.min(EX.unit, EX.bars / Math.max(...all)), ground = EX.ways + EX.bars, boxes = exBoxes(now), slots = exSlots(now);
  const y = (row) => round(ground - row * unit), home = (t) => Math.floor(t / now.tokens), tall = round(Math.max(1, unit - (unit > 3 ? 1 : 0.4)));
  const top = ([, , kept]) => Math.max(slots, kept.length);
  const row = (t, at, [middle, wide], kind, said) => html`<rect class="pl-ex-row ${kind} ${hue(home(t))}${t === token ? " pl-ex-on" : ""}"
    x="${round(middle - wide / 2)}" y="${y(at + 1)}" width="${round(wide)}" height="${tall}"><title>token ${t} of rank ${home(t)}${said}</title></rect>`;
  const box = (column, n) => {
    const [rank, expert, kept, dropped] = column, [middle, wide] = boxes[n], left = round(middle - wide / 2), over = top(column) + 1, met = {};
    const place = (t, i) => { const h = home(t), at = met[h] ?? 0; met[h] = at + 1; return slots ? (h % now.ep) * now.room + at : i; };
    return html`<g data-key="box${rank}-${expert}"><title>expert ${expert} on rank ${rank}: ${plural(kept.length, "row")}${dropped.length ? `, ${dropped.length} dropped` : ""}</title>
      ${slots ? html`<rect class="pl-ex-box" x="${left}" y="${y(slots)}" width="${round(wide)}" height="${round(slots * unit)}"/>` : ""}
      ${kept.map((t, i) => row(t, place(t, i), boxes[n], "", ""))}${dropped.map((t, i) => html`${row(t, over + i, boxes[n], "pl-ex-lost", ": dropped")}
        <rect class="pl-ex-hatched" x="${left}" y="${y(over + i + 1)}" width="${round(wide)}" height="${tall}"/>`)}
      ${slots ? html`<path class="pl-ex-line" d="M${round(left - 2)} ${y(slots)}h${round(wide + 4)}"/>` : ""}
      ${dropped.length ? html`<text class="pl-ex-said" x="${middle}" y="${y(over + dropped.length) - 4}">${wide > 50 ? `${dropped.length} dropped` : wide > 12 ? dropped.length : ""}</text>` : ""}</g>`;
  };
  const way = (t, expert, kept) => {
    const n = now.columns_of.findIndex(([rank, e]) => e === expert && Math.floor(rank / now.ep) === Math.floor(home(t) / now.ep)
      && (now.ep > 1 || rank === home(t)));
    const from = exToken(t, now), [to] = boxes[n], end = y(top(now.columns_of[n]) + (kept ? 0 : now.columns_of[n][3].length + 1)), bend = Math.min(50, end * 0.6);
    const head = back ? `M${from - 4} 7l4 -7l4 7z` : `M${round(to - 4)} ${end - 7}l4 7l4 -7z`; // where it arrives
    return html`<path class="pl-ex-way ${hue(home(t))}${kept ? "" : " pl-ex-lost"}${t === token ? " pl-ex-on" : ""}"
      d="M${from} 0C${from} ${bend} ${round(to)} ${round(end - bend)} ${round(to)} ${end}"/>${t === token && (kept || !back) ? html`<path
      class="pl-ex-head" d="${head}"/>` : ""}`;
  };
  const ways = now.chosen.flatMap((experts, t) => experts.map((e, j) => [t, e, now.kept[t][j]]));
  const ordered = [...ways.filter(([t]) => t !== token), ...ways.filter(([t]) => t === token)];
  return html`<svg class="pl-ex" width="${EX.width}" height="${ground + 2}" viewBox="0 0 ${EX.width} ${ground + 2}" role="img"
    aria-label="rows of each expert, ${now.small}. ${status}"><defs><pattern id="pl-ex-hatch" width="5" height="5" patternUnits="userSpaceOnUse"
    patternTransform="rotate(45)"><path d="M0 0V5" class="pl-ex-stripe"/></pattern></defs>
    ${ordered.map((one) => way(...one))}${now.columns_of.map(box)}<path class="pl-outline" d="M0 ${ground + 1}H${EX.width}"/></svg>`;
}

// One token is chosen, as in a row of buttons.
function exHomes(now, s, ui) {
  const one = (_, t) => html`<button type="button" role="radio" class="pl-ex-token ${hue(Math.floor(t / now.tokens))}" aria-checked="${t === s.token.value}"
    tabindex="${t === s.token.value ? 0 : -1}" data-key="token${t}" data-command="set_token" data-value="${t}" data-number="1"
    style="left:${exToken(t, now) - 8}px"${disabledUnless(ui, "set_token", t)}>${t}</button>`;
  const names = Array.from({ length: now.ranks }, (_, r) => html`<span style="left:${exToken(r * now.tokens, now) - 8}px">rank ${r} holds</span>`);
  return html`<div class="pl-ex-names" aria-hidden="true">${names}</div><div class="pl-ex-homes" role="radiogroup" aria-label="token" data-roving="8">
    ${now.chosen.map(one)}</div>`;
}

// Below each box its expert's number; two that are picked change places.
function exExperts(now, s, ui) {
  const boxes = exBoxes(now), rows = Array(now.ranks).fill(0), per = now.columns_of.length / now.ranks;
  now.columns_of.forEach(([rank, , kept]) => { rows[rank] += kept.length; });
  const most = Math.max(...rows), narrow = boxes[0][1] < 13, wide = boxes[0][1] > 50;
  const one = ([rank, expert, kept], n) => html`<button type="button" class="pl-ex-expert" data-key="pick${rank}-${expert}" data-command="pick" data-value="${expert}"
    data-number="1" aria-pressed="${s.held === expert}" aria-label="expert ${expert} on rank ${rank}, ${plural(kept.length, "row")}" title="expert ${expert}: click two, and they change places"
    style="left:${round(boxes[n][0] - boxes[n][1] / 2)}px;width:${round(boxes[n][1])}px"${flag("disabled", now.ep === 1 || !ui.can("pick", expert))}>${narrow ? "" : `${wide ? "expert " : ""}${expert}`}</button>`;
  const rank = (count, r) => html`<span class="${count === most && rows.some((c) => c < most) ? "pl-ex-most" : ""}"
    style="left:${round(boxes[r * per][0] - boxes[r * per][1] / 2)}px">rank ${r}: ${plural(count, "row")}</span>`;
  const tick = ([, expert], n) => { const [bias, sign] = now.bias[expert]; return html`<span style="left:${round(boxes[n][0] - 25)}px">${boxes[n][1] > 33
    ? `${bias > 0 ? "+" : ""}${bias}` : ""}${sign > 0 ? "↑" : sign < 0 ? "↓" : ""}</span>`; };
  return html`<div class="pl-ex-experts" role="group" aria-label="experts">${now.columns_of.map(one)}</div>
    ${now.bias.length ? html`<div class="pl-ex-names pl-ex-bias" title="selection bias, and where the next step moves it">${now.columns_of.map(tick)}</div>` : ""}
    <div class="pl-ex-names">${rows.map(rank)}</div>`;
}

function exFlow(s, ui) {
  const section = s.sections.flow, now = forChoices(section, s), t = s.token.value;
  const said = now.chosen[t].map((e, j) => `${e} (${now.kept[t][j] ? now.weights[t][j].toFixed(2) : "dropped"})`).join(", ");
  return html`<div role="group" class="pl-section pl-ex-flow" data-key="flow" aria-label="Tokens and experts">
    <div class="pl-ex-step">${segments("set_step-", "after step", s.step, "set_step", ui)}
      <small>token ${t} ${s.way.value === "back" ? "from" : "to"} ${now.chosen[t].length > 4 ? now.chosen[t].join(", ") : said}</small></div>
    <div class="pl-ex-figure"><div class="pl-ex-inner">${exHomes(now, s, ui)}${exPicture(section, now, t, s.way.value === "back", s.leads[s.step.value])}${exExperts(now, s, ui)}</div></div></div>`;
}

// How unequal ranks and experts are, step by step.
function exOver(s, ui) {
  if (ui.tab) return html``;
  const { title, lines } = s.sections.over, most = Math.max(2, ...lines.ranks, ...lines.chosen), last = lines.ranks.length - 1;
  const x = (step) => round(24 + (step / last) * (EX.over - 34)), y = (v) => round(EX.high - 18 - ((v - 1) / (most - 1)) * (EX.high - 28));
  const line = (values, n) => html`<path class="pl-cv-line" style="stroke:var(--pl-cv-${n})" d="M${values.map((v, i) => `${x(i)} ${y(v)}`).join("L")}"/>`;
  const at = s.step.value, ticks = roundTicks(1, most, 4), dot = (values, n) => html`<circle cx="${x(at)}" cy="${y(values[at])}" r="3.5" style="fill:var(--pl-cv-${n})"/>`;
  const key = (n, text) => html`<span><i class="pl-ex-key-${n}"></i>${text}</span>`;
  const alt = `busiest over mean after step ${at}: rank ${lines.ranks[at]}, expert ${lines.chosen[at]}`;
  const ours = () => html`<svg width="${EX.over}" height="${EX.high}" viewBox="0 0 ${EX.over} ${EX.high}" role="img" aria-label="${alt}">
    ${ticks.map((v) => html`<path class="pl-cv-grid" d="M24 ${y(v)}H${EX.over - 10}"/><text class="pl-cv-y" x="20" y="${y(v) + 4}">${v}</text>`)}
    ${[0, 8, 16, 24].map((v) => html`<text class="pl-cv-x" x="${x(v)}" y="${EX.high - 3}">${v}</text>`)}
    <path class="pl-cv-at" d="M${x(at)} 6V${EX.high - 18}"/>${line(lines.chosen, 1)}${line(lines.ranks, 0)}${dot(lines.chosen, 1)}${dot(lines.ranks, 0)}</svg>`;
  // a click on a step that can be looked at chooses it
  const steps = new Set(s.step.choices.map(valueOf)), all = lines.ranks.map((_, step) => step);
  const trace = (values, n, text) => ({ type: "scatter", mode: "lines+markers", x: all, y: values, hoverinfo: "text",
    hovertext: values.map((v, step) => `after step ${step}<br>${text}: ${v} x the mean`), customdata: all.map((step) => (steps.has(step) ? step : null)),
    line: { color: `var(--pl-cv-${n})`, width: 2 }, marker: { color: `var(--pl-cv-${n})`, size: all.map((step) => (step === at ? 8 : 3)) } });
  const made = () => ({
    pick: "set_step",
    data: [trace(lines.chosen, 1, "busiest expert"), trace(lines.ranks, 0, "busiest rank")],
    layout: {
      hovermode: "x", margin: { l: 24, r: 10, t: 6, b: 18 },
      xaxis: { range: [0, last], tickvals: [0, 8, 16, 24], showgrid: false },
      yaxis: { range: [1, most * 1.02], tickvals: ticks },
      shapes: [{ type: "line", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: "var(--pl-muted)", width: 1, dash: "dot" } }],
    },
  });
  return html`<div role="group" class="pl-section" data-key="over" aria-label="${title}"><h3>${title}</h3>
    <figure class="pl-cv">${figure("over", ui, { alt, height: EX.high }, ours, made)}</figure>
    <p class="pl-legend">${key(0, "busiest rank")}${key(1, "busiest expert")}</p></div>`;
}

const exExchange = (s, ui) => (ui.tab ? html`` : section(s, "exchange", ui, { above: html`<div class="pl-ex-step">${segments("set_way-", "message", s.way, "set_way", ui)}</div>` }));
const SET = { experts: 4, k: 4, router: 1, factor: 1, convention: 1, ep: 4, skew: 4, bias_rate: 4, balance_factor: 4, placement: 1 }; // buttons at most
const exSet = (s, ui) => html`<div class="pl-ex-set">${Object.entries(SET).map(([name, most]) => control(`set_${name}`, s[name], ui, most))}
  ${s.sections.flow.notes.map((note) => html`<p class="pl-muted pl-ex-key">${note}</p>`)}${ui.live || s.run.text ? html`<div class="pl-ex-run">${s.run.text ? runLine(s.run, "pl-muted", ui)
    : html`<p class="pl-muted">Rows are counted, bytes predicted, until they are run.</p>`}</div>` : ""}</div>`;
const exHead = (s, ui) => head({ ...s, status: s.leads[s.step.value] }, button("run_measured", "Run on ranks", ui,
  { on: s.run.state !== "running", title: "train the net on four worker processes, and on one device" }), ui);
// What the router says of the chosen token: a page without a kernel has the numbers of all.
function exRouter(s) {
  const now = forChoices(s.sections.router, s), flow = forChoices(s.sections.flow, s), t = s.token.value, three = (x) => x.toFixed(3);
  const rows = now.z[t].map((z, e) => {
    const at = flow.chosen[t].indexOf(e), said = at < 0 ? ["", ""] : [`choice ${at + 1}${flow.kept[t][at] ? "" : ", dropped"}`, three(flow.weights[t][at])];
    return [`expert ${e}`, three(z), three(now.p[t][e]), `${now.bias[e] < 0 ? "" : "+"}${three(now.bias[e])}`, ...said];
  });
  const small = now.small.replace(/of rank \d+/, `of rank ${Math.floor(t / flow.tokens)}`);
  return { ...s, sections: { ...s.sections, router: { ...now, by: undefined, title: `Router of token ${t}`, small, rows } } };
}
const exMore = (s, ui) => tabs(ui, sectionTabs(exRouter(s), ui, [["router", `Router of token ${s.token.value}`], ["messages", "Messages"], ["places", "Placement"],
  ["ran", "On ranks"], ["python", "Code"]], false));

const { render, mountPage } = lab({
  classes: ["pl-ex-lab"],
  story: STORY,
  parts: { head: exHead, set: exSet, flow: exFlow, exchange: exExchange, over: exOver, more: exMore },
  skeleton: html`<div class="pl-top">${slot("head")}</div><div class="pl-ex-main">${slot("set")}<div class="pl-ex-right">${slot("flow")}
    ${slot("more")}<div class="pl-ex-two">${slot("exchange")}${slot("over")}</div></div></div>`,
});
