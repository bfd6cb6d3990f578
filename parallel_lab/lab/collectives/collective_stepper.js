// The Collective Stepper: cards of ranks, messages above them, and tokens that fly from card to card when a round is
// done. What all labs share is in page.js. A page of its own steps by the frames that the snapshot carries.
//
// Colour = chunk (which part of the data), position = rank. Hatching and a sigma = a partial sum; the little
// squares say whose are in it.

const frameOf = (s) => s.frames[s.at];

// ---- controls ----

function header(s, ui) {
  return html`<div class="pl-head">
    <h2 class="pl-title">${s.title}</h2>
    ${choice("contention", "links", s.contention, "choose_contention", ui)}
    ${follow(s, ui)}${predictSwitch(s, ui)}
    ${choice("kind", "collective", s.kind, "choose_kind", ui)}
    ${segments("n", "ranks", s.ranks, "choose_ranks", ui, { name: (n) => plural(n, "rank") })}
    ${choice("elements", "S", s.elements, "choose_elements", ui)}
    ${choice("cluster", "machine", s.cluster, "choose_cluster", ui)}
  </div>`;
}

// Which chunk is shown bright, the others being dimmed.
function follow(s, ui) {
  const option = (c, i) => html`<option value="${i}" data-key="f${i}"
    ${flag("selected", s.follow === i)}>chunk ${c.label}</option>`;
  return html`<label class="pl-field"><span>follow</span><select data-key="follow" data-command="follow"
    ${disabledUnless(ui, "follow")}>
    <option value=""${flag("selected", s.follow === null)}>all</option>${s.chunks.map(option)}</select></label>`;
}

const placeOf = (s) => ({
  at: s.at, last: s.rounds, text: frameOf(s).text, noun: "round",
  phases: s.phases.map((p) => ({
    rounds: p.rounds, name: p.name.replaceAll("_", " "), on: p.name && p.name === frameOf(s).phase,
  })),
});

// What the round does; below it what is so at the end.
function roundSaid(s) {
  const [now, ...end] = frameOf(s).text.split(/(?<=[a-z)]\.) /);
  return lead(now, end.join(" "));
}

function refused(s) {
  const article = s.kind.value.startsWith("all_") ? "an" : "a";
  const fault = s.fault && `This list of sends is not ${article} ${s.kind.value}. ${s.fault}`;
  return notices({ alert: s.last_error, fault });
}

// ---- messages: arcs above the cards ----

function arcs(s, ui) {
  const coming = s.at === 0 && s.rounds > 0, frame = s.frames[coming ? 1 : s.at], n = s.ranks.value;
  const width = ui.width, pitch = width / n, x = (r) => (r + 0.5) * pitch;
  const furthest = Math.max(1, ...s.frames.flatMap((f) => f.messages.map((m) => Math.abs(m.source - m.destination))));
  const height = 22 + Math.min(46, 12 * furthest), base = height - 3;
  const most = Math.max(1, ...s.frames.flatMap((f) => f.messages.map((m) => m.chunks.length)));
  const arc = (m) => {
    const right = m.destination > m.source, apart = Math.abs(m.source - m.destination);
    const lean = (right ? 0.05 : -0.15) * Math.min(pitch, 140);
    // two messages between the same ranks keep apart: those to the right run higher, and each starts and ends next to
    // the middle of the card; a cubic reaches 3/4 of the way to its controls
    const peak = 6 + (apart / furthest) * (height - 18) + (right ? 5 : 0), top = round(base - peak / 0.75);
    const a = round(x(m.source) + lean), b = round(x(m.destination) - lean);
    const dim = s.follow !== null && !m.chunks.includes(s.follow);
    const one = m.chunks.length === 1 ? hue(s.chunks[m.chunks[0]].hue) : "";
    const thick = 1.5 + 2.5 * (m.chunks.length / most), d = `M${a} ${base}C${a} ${top} ${b} ${top} ${b} ${base - 5}`;
    const path = (name, wide) => html`<path class="${name}" d="${d}" stroke-width="${round(wide)}"/>`;
    return html`<g class="pl-arc${m.add ? " pl-adds" : ""}${dim ? " pl-faded" : ""} ${one}"
      data-key="${m.source}-${m.destination}">${path("pl-under", thick + 2)}${path("pl-stroke", thick)}
      <path class="pl-tip" d="M${round(b - 4.5)} ${base - 7}h9l-4.5 7z"/></g>`;
  };
  const sizes = frame.messages.map((m) => m.bytes), least = Math.min(...sizes), largest = Math.max(...sizes);
  const size = least === largest ? bytesText(least) : `${bytesText(least)} to ${bytesText(largest)}`;
  const what = sizes.length ? `${plural(sizes.length, "message")} of ${size}` : "no messages";
  const adds = html`, <i class="pl-sigma">Σ</i> added on arrival`, stored = sizes.length ? ", stored on arrival" : "";
  const how = frame.messages.some((m) => m.add) ? adds : stored;
  const said = frame.messages.map((m) => `${m.source} to ${m.destination}`).join(", ") || "none";
  return html`<figure class="pl-band">
    <figcaption>${coming ? html`<b>round 1</b>, to come: ` : html`<b>round ${s.at}</b>: `}${what}${how}</figcaption>
    <svg class="${coming ? "pl-coming" : ""}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"
      role="img" aria-label="messages: ${said}">${frame.messages.map(arc)}</svg></figure>`;
}

// ---- rank cards ----

// A square per rank, tall where `has(rank)`.
function squares(n, has) {
  const one = (_, rank) => html`<i class="${has(rank) ? "pl-in" : ""}"></i>`;
  return html`<span class="pl-who">${Array.from({ length: n }, one)}</span>`;
}

function token(s, cell, chunk, dim) {
  const c = s.chunks[chunk], n = s.ranks.value, fresh = cell.from.length ? " pl-fresh" : "";
  const came = fresh ? `, came from rank ${cell.from.join(", ")}` : "";
  const names = `pl-token ${hue(c.hue)} pl-${cell.state}${fresh}${dim ? " pl-faded" : ""}`;
  const about = s.reducing ? `${c.label}: ${cell.sum}` : `${c.label}${came}`;
  const sum = cell.who.length === n ? "Σ all" : `Σ ${cell.who.length}/${n}`;
  const addends = html`${squares(n, (r) => cell.who.includes(r))}<span class="pl-sum">${sum}</span>`;
  const content = [html`<b>${c.label}</b>`, s.reducing ? addends : ""];
  return html`<span class="${names}" data-chunk="${chunk}" title="${about}">${content}</span>`;
}

function cards(s) {
  const frame = frameOf(s), limit = s.limit_bytes || 1, bound = s.counters[2];
  const place = (card, row) => Array.from({ length: s.slots }, (_, slot) => {
    const chunk = s.chunks.findIndex((c) => c.row === row && c.slot === slot), cell = card.cells[chunk];
    const dim = s.follow !== null && s.follow !== chunk;
    return html`<span class="pl-cell${cell ? "" : " pl-none"}" data-key="c${chunk}"
      data-cell="${card.rank}-${chunk}">${cell ? token(s, cell, chunk, dim) : ""}</span>`;
  });
  const one = (card) => {
    const sent = frame.sent[card.rank], share = Math.min(1, sent / limit), root = s.root === card.rank;
    const row = (_, i) => html`<div class="pl-place-row">${place(card, i)}</div>`;
    return html`<div class="pl-rank-card" role="listitem" tabindex="-1" data-key="r${card.rank}"
        aria-label="rank ${card.rank}${root ? ", the root" : ""}: ${card.text}; has sent ${bytesText(sent)}">
      <div class="pl-rank-head" aria-hidden="true"><span>rank <b>${card.rank}</b></span>
        ${root ? html`<i>root</i>` : ""}</div>
      <div class="pl-places" aria-hidden="true">${Array.from({ length: s.rows }, row)}</div>
      <div class="pl-meter" aria-hidden="true"><span class="pl-meter-bar"><span class="pl-meter-fill"
        style="width:${round(share * 100)}%"></span></span>
        <span class="pl-meter-text">sent ${bytesText(sent)}</span></div>
    </div>`;
  };
  const end = bound.formula === null ? "what the busiest rank sends"
    : html`the formula, ${bound.formula_text} = ${bytesText(s.limit_bytes)}`;
  return html`<div class="pl-team-cards${s.slots > 1 ? " pl-grid" : ""}${s.reducing ? " pl-sums" : ""}" role="list"
      aria-label="ranks, in order" style="--ranks:${s.ranks.value};--slots:${s.slots}">${frame.cards.map(one)}</div>
    <p class="pl-limit" aria-hidden="true">bars: bytes sent so far; right end = ${end}</p>`;
}

// ---- counters, algorithms, key ----

// A table in a panel: `heads` are texts, those of numbers with "#" before them.
function panel(name, title, kind, heads, rows, below) {
  const look = (text) => (text.startsWith("#") ? "pl-number" : "");
  const head = (text) => (text ? html`<th scope="col" class="${look(text)}">${text.replace("#", "")}</th>`
    : html`<td></td>`);
  return html`<div role="group" class="pl-panel" aria-label="${name}">${title ? html`<h3>${title}</h3>` : ""}
    <div class="pl-scroll"><table class="${kind}"><thead><tr>${heads.map(head)}</tr></thead>
    <tbody>${rows}</tbody></table></div>${below}</div>`;
}

function counters(s) {
  const show = { count: String, bytes: bytesText, seconds: timeText }, frame = frameOf(s);
  const verdict = (c) => {
    if (!c.met) return html`<b class="pl-verdict pl-unmet">✗ not met</b>`;
    if (s.at === s.rounds) return html`<b class="pl-verdict pl-met">✓ met</b>`;
    return html`<span class="pl-verdict pl-muted" title="the count at the end is equal to it">at the end ✓</span>`;
  };
  const formula = (c) => {
    const free = c.unit === "seconds" && s.contention.value !== "none";
    const none = free ? "no closed form with contention" : "none: your own list";
    if (c.formula === null) return html`<span class="pl-muted">${none}</span>`;
    return html`<span class="pl-formula-text">${c.formula_text}</span> = ${show[c.unit](c.formula)} ${verdict(c)}`;
  };
  const row = (c) => html`<tr data-key="${c.label}"><th scope="row">${c.label}</th>
    <td class="pl-number"><b>${show[c.unit](c.now)}</b></td><td class="pl-number">${show[c.unit](c.end)}</td>
    <td>${formula(c)}</td></tr>`;
  const { value, padded } = s.elements, pad = `; S is padded to ${padded} elements, so that chunks are equal`;
  const below = html`<p class="pl-muted pl-small" title="times of ${s.machine}">${frame.met} of ${frame.wanted} places
    hold what they need at the end${padded === value ? "" : pad}.</p>`;
  const heads = ["", "#so far", "#at the end", "formula"];
  return panel("counted, and by formula", "", "pl-counters", heads, s.counters.map(row), below);
}

function compare(s, ui) {
  const slowest = Math.max(...s.compare.map((c) => c.time_s)) || 1;
  const best = (c) => (c.fastest ? html` <b class="pl-met">fastest</b>` : "");
  const mark = (c) => (c.wrong ? html` <b class="pl-unmet">wrong</b>` : best(c));
  const row = (c) => html`<tr data-key="${c.name}" class="${c.shown ? "pl-on" : ""}"><th scope="row"><label>
      <input type="radio" name="${ui.id}-algorithm" data-command="choose_algorithm" value="${c.name}"
      ${flag("checked", c.shown)}${disabledUnless(ui, "choose_algorithm", c.name)}> <span>${breakable(c.name)}</span></label></th>
    <td class="pl-number">${c.rounds}</td><td class="pl-number">${bytesText(c.sent)}</td>
    <td class="pl-number">${timeText(c.time_s)}</td><td class="pl-bars">
      <span class="pl-time-bar" style="width:${round((c.time_s / slowest) * 60)}%"></span>${mark(c)}</td></tr>`;
  const title = html`Algorithms <small>for ${s.kind.value} of ${bytesText(s.size_bytes)}</small>`;
  const idea = s.algorithm.words ? html`<p class="pl-idea">${s.algorithm.words}.</p>` : "";
  const heads = ["algorithm", "#rounds", "#sent", "#time", "predicted"];
  return panel("algorithms", title, "pl-compare", heads, s.compare.map(row), idea);
}

function key(s) {
  const n = s.ranks.value, who = (k) => squares(n, (r) => r < k), two = html`<b>2</b>`;
  const chip = (state, body) => html`<dt><span class="pl-token pl-hue-2 pl-${state}">${body}</span></dt>`;
  const spent = ["scatter", "gather", "all_to_all"].includes(s.kind.value);
  const place = s.slots > 1 ? "colour and place in the line: from which rank; line r is for rank r"
    : "colour and number: which chunk of the data";
  const missing = html`hatched <i class="pl-sigma">Σ</i>: a partial sum, others are missing; bar r is tall when rank r's is in`;
  const sums = [
    [chip("partial", [two, who(Math.max(1, n - 1))]), missing],
    [chip("done", [two, who(n)]), "plain: the complete sum"],
    [chip("spent", [two, who(1)]), "pale: passed on, part of another sum"],
  ];
  const pieces = [[chip("done", two), place], ...(spent ? [[chip("spent", two), "pale: passed on"]] : [])];
  const rows = [...(s.reducing ? sums : pieces), [chip("done pl-fresh", two), "ringed: came in this round"]];
  return html`<div class="pl-keys${s.reducing ? " pl-sums" : ""}" style="--ranks:${n}"><dl class="pl-key">
    ${rows.map(([mark, text]) => html`<div>${mark}<dd>${text}</dd></div>`)}</dl>
    <p class="pl-muted pl-small">Times: ${s.machine}.</p></div>`;
}

function listing(s) {
  const item = (f) => html`<li data-key="${f.round}"${flag('aria-current="step"', f.round === s.at)}>
    <button type="button" class="pl-link" data-act="to" data-value="${f.round}">${f.text}</button></li>`;
  return html`<div role="group" class="pl-rounds" aria-label="all rounds in words"><ol start="0">${s.frames.map(item)}</ol></div>`;
}

const tables = (s, ui) => tabs(ui, {
  counted: ["Counted, and by formula", null, () => counters(s)],
  compare: ["Algorithms", s.compare.length, () => compare(s, ui)],
  rounds: ["All rounds in words", null, () => listing(s)],
  key: ["How to read the picture", null, () => key(s)],
});

// ---- the tokens of a round travel along its arrows; the cards change when they land ----

function flights({ root, snapshot }) {
  const box = (rank, chunk) => {
    const cell = root.querySelector(`[data-cell="${rank}-${chunk}"]`);
    return cell && boxIn(root, cell);
  };
  const one = (m, chunk) => {
    const from = box(m.source, chunk), to = box(m.destination, chunk);
    const mark = root.querySelector(`[data-cell="${m.source}-${chunk}"] .pl-token`);
    if (!from || !to || !mark) return [];
    const ghost = mark.cloneNode(true);
    ghost.classList.remove("pl-fresh", "pl-spent");
    // what does not fit on the cards
    [...mark.children].forEach((part, i) => {
      if (getComputedStyle(part).display === "none") ghost.children[i].dataset.hidden = "";
    });
    ghost.querySelectorAll("[data-hidden]").forEach((part) => part.remove());
    return [{ ghost, from, to, by: alongArrow(root, m, from) }];
  };
  return frameOf(snapshot).messages.flatMap((m) => m.chunks.flatMap((chunk) => one(m, chunk)));
}

// Points of a message's arrow, for the middle of a token that starts in the box `from`.
function alongArrow(root, m, from) {
  const arrow = root.querySelector(`.pl-arc[data-key="${m.source}-${m.destination}"] .pl-stroke`);
  if (!arrow) return [];
  const around = boxIn(root, arrow.ownerSVGElement), length = arrow.getTotalLength();
  return Array.from({ length: 9 }, (_, i) => {
    const { x, y } = arrow.getPointAtLength((length * i) / 8);
    return [around.left + x - from.left - from.width / 2, around.top + y - from.top - from.height / 2];
  });
}

// ---- what can be done ----

function handlers(view) {
  const { send } = view, steps = transportHandlers(view, () => placeOf(view.snapshot));
  return {
    ...steps,
    click(event) {
      const mark = event.target.closest("[data-chunk]");
      if (!mark) return steps.click(event);
      const chunk = Number(mark.dataset.chunk);
      send("follow", [view.snapshot.follow === chunk ? null : chunk]);
      return true;
    },
    change(event) {
      const { target } = event, follows = target.dataset.command === "follow";
      if (follows) send("follow", [target.value === "" ? null : Number(target.value)]);
      return follows || steps.change(event);
    },
  };
}

const { render, mountPage } = lab({
  classes: ["pl-stepper"],
  story: STORY,
  tab: "counted",
  parts: {
    head: header,
    status: (s, ui) => html`${asksOrTells(s, ui)}${openQuestion(s) ? "" : roundSaid(s)}${refused(s)}`,
    transport: (s, ui) => transport(ui, placeOf(s)),
    arcs, cards, tables,
  },
  skeleton: html`<div class="pl-top">${["head", "transport", "status"].map(slot)}</div>
    <div class="pl-stage">${slot("arcs")}${slot("cards")}</div>
    ${slot("tables")}
    ${sky}`,
  measure(ui, root) { ui.width = Math.max(240, Math.floor(root.querySelector(".pl-stage").clientWidth || 900)); },
  numbers: ["choose_ranks", "choose_elements"],
  handlers,
  ...flying({
    place: placeOf, flights, waiting: ["cards"],
    story: (s) => [s.kind, s.algorithm, s.ranks, s.elements].map(({ value }) => value).join(),
  }),
  ahead: (command, [at]) => (command === "to" ? { at } : null), // a step is shown before the kernel has answered
});
