// A recorded run (lab/shared/recording.py), stepped through: which step is looked at, and which moment of it. The kernel
// is not asked: all parts of a lab draw the snapshot that `past` makes of the present one.
//
//   past(s, ui)          the snapshot as it was at the chosen step;  scrubber, momentSlider: what chooses it
//   withScrub(view, own) handlers of a lab with them

const SC_ARRAYS = {
  steps: Uint32Array, losses: Float64Array, sent: Float64Array, held: Float64Array, sums: Uint32Array, sizes: Float32Array,
  took: Float32Array, timed: Uint32Array, times: Uint32Array,
};
const SC_US = 0.1; // a tick of the times, in microseconds

async function unpackRecording(packed) {
  const array = async ([name, kind]) => {
    const bytes = Uint8Array.from(atob(packed.arrays[name]), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return [name, new kind(await new Response(stream).arrayBuffer())];
  };
  const r = { ...packed, ...Object.fromEntries(await Promise.all(Object.entries(SC_ARRAYS).map(array))) };
  const row = ([phase, kind, name, op, overlapped, group, bytes, message, live]) => (
    { phase, kind, name, op, overlapped, group, bytes, message, live });
  r.rows = packed.rows.map(row);
  r.offsets = r.lanes.map((_, rank) => r.lanes.slice(0, rank).reduce((sum, lane) => sum + lane.length, 0));
  r.all = r.lanes.reduce((sum, lane) => sum + lane.length, 0);
  const meets = {}; // of a message the places of all that meet in it: it begins when the last of them comes
  r.lanes.forEach((lane, rank) => {
    const seen = {};
    lane.forEach((n, i) => {
      const e = r.rows[n], key = `${e.phase} ${e.name} ${e.group}`;
      if (e.kind !== "communication" || e.overlapped) return;
      seen[key] = (seen[key] ?? 0) + 1;
      (meets[`${key} ${seen[key]}`] ??= []).push(r.offsets[rank] + i);
    });
  });
  r.meets = new Map(Object.values(meets).flatMap((places) => places.map((place) => [place, places])));
  r.usual = [...r.took].sort((a, b) => a - b)[Math.floor(0.9 * (r.took.length - 1))] * 1e6; // the axis of most steps
  return r;
}

// The recording of a snapshot, once it is unpacked.
function recordingOf(s, ui) {
  const known = ui.scrub?.packed;
  if (!ui.scrub || (known !== s.recording && known?.arrays.losses !== s.recording?.arrays.losses)) {
    ui.marked = null;
    const mine = ui.scrub = { packed: s.recording, found: null, at: null, moment: null };
    if (s.recording) unpackRecording(s.recording).then((found) => { mine.found = found; ui.redraw?.(); });
  }
  return ui.scrub?.found ?? null;
}

// Bars of one step; when each message of it began.  d: its place among those with times
function recordedLanes(r, d) {
  const at = (place, end) => r.times[2 * (d * r.all + place) + end] * SC_US, thin = r.usual / 200;
  return r.lanes.map((lane, rank) => {
    const bars = [], now = [];
    lane.forEach((n, i) => {
      const e = r.rows[n], place = r.offsets[rank] + i, [start, end] = [at(place, 0), at(place, 1)], last = bars.at(-1);
      const began = Math.min(end, Math.max(...(r.meets.get(place) ?? [place]).map((one) => at(one, 0))));
      now.push({ e, start, end, began });
      if (e.overlapped) return;
      if (began > start) bars.push({ start, end: began, kind: "wait", label: `${e.op} (${e.name})` });
      if (e.kind === "compute" && last?.kind === "compute" && end - start < thin && start - last.end < thin) last.end = end;
      else bars.push({ start: began, end, kind: e.kind, label: `${e.op} (${e.name})` });
    });
    return { rank, bars, now };
  });
}

// The one instruction that a rank is at, and what it does there.
function doesAt(lane, moment) {
  const one = lane.now.findLast(({ start }) => start <= moment) ?? lane.now[0];
  const does = moment > one.end ? "idle" : moment < one.began ? "waits" : one.e.op;
  return { ...one, does };
}

// The snapshot as it was at the chosen step and moment.
function past(s, ui) {
  const r = recordingOf(s, ui), here = ui.scrub;
  if (!r || here.at === null) return s;
  if (here.of === s && here.made === `${here.at} ${here.moment}`) return here.past;
  const ranks = r.lanes.length, at = here.at, d = Math.max(0, r.timed.findLastIndex((place) => place <= at));
  const lanes = recordedLanes(r, d), whole = Math.max(...lanes.flatMap((lane) => lane.now.map((one) => one.end)));
  const cursor = here.moment === null ? null : (here.moment / 1000) * whole;
  const t = r.tensors.indexOf(s.tensor), place = (rank) => (at * ranks + rank) * r.tensors.length + t;
  const loss = (rank) => r.losses[at * ranks + rank], late = new Map(r.differs.map(([rank, step]) => [rank, step]));
  const cards = s.cards.map((c) => {
    const own = t >= 0 && r.holders[t][c.rank], value = own ? r.sizes[place(c.rank)] : loss(c.rank);
    const differs = late.get(c.rank) <= r.steps[at], does = cursor === null ? null : doesAt(lanes[c.rank], cursor).does;
    return { ...c, past: { text: `${own ? "rms" : "loss"} ${smallText(value)}`, differs, does } };
  });
  const now = doesAt(lanes[s.rank], cursor ?? 0), live = cursor === null ? [] : now.e.live;
  const held = Object.fromEntries(live.map((bytes, i) => [r.kinds[i], bytes]));
  const same = [...Array(ranks).keys()].every((rank) => loss(rank) === loss(0));
  const said = `step ${r.steps[at]}: loss ${smallText(loss(s.rank))} ${same ? "on every rank" : `on rank ${s.rank}`}`;
  const timed = r.steps[r.timed[d]], source = timed === r.steps[at] ? r.source : `${r.source}: step ${timed}`;
  here.past = {
    ...s, cards, gap: null, fit: null, moment: cursor === null ? null : { held, message: now.does === now.e.op ? now.e.message : 0 },
    timeline: { source, unit: "us", end: Math.max(whole, r.usual), lanes, cursor, whole },
    loss: { ...s.loss, past: said },
    status_rank: `S${said.slice(1)}${cursor === null ? "" : `; rank ${s.rank}: ${now.does} (${now.e.name})`}.`,
  };
  Object.assign(here, { of: s, made: `${here.at} ${here.moment}` });
  return here.past;
}

const inPast = (parts) => Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, (s, ui) => part(past(s, ui), ui)]));

// The slider over all steps, where there is a recording; until then what stands in its place.
function scrubber(s, ui, otherwise) {
  const r = recordingOf(s, ui);
  if (!r) return otherwise;
  const last = r.steps.length - 1, at = ui.scrub.at ?? last, text = `step ${r.steps[at]} of ${r.steps[last]}`;
  return html`<span class="pl-progress pl-scrub"><input type="range" data-key="scrub" data-scrub="at" min="0" max="${last}"
    step="1" value="${at}" aria-label="step of the recorded run" aria-valuetext="${text}" title="Recorded: ${r.said}">
    <span class="pl-progress-text">${text}</span></span>`;
}

// The slider over one step.
const momentSlider = (s, ui) => (s.timeline?.whole === undefined ? "" : html`<input type="range" class="pl-moment"
  data-key="moment" data-scrub="moment" min="0" max="1000" step="5" value="${ui.scrub.moment ?? 0}"
  aria-label="moment of the step" aria-valuetext="${timeText((s.timeline.cursor ?? 0) * 1e-6)}">`);

// Whether the selected rank's slices were what they are elsewhere; a button leads to where they were not.
function whereDiffers(s, ui) {
  const r = recordingOf(s, ui), found = r?.differs.find(([rank]) => rank === s.rank);
  const copies = r?.holders.some((mine) => mine[s.rank] && mine.filter((one) => one === mine[s.rank]).length > 1);
  if (!r || (!found && !copies)) return "";
  if (!found) return html` <span class="pl-good" title="${r.verdict}">✓ equal at every step</span>`;
  const [, step, tensor] = found;
  return html` <button type="button" class="pl-button pl-wrong" data-key="differs" data-differs="${step}"
    title="${r.verdict}">✗ ${tensor} differs at step ${step}</button>`;
}

function withScrub(view, own) {
  const { ui } = view;
  ui.redraw = () => view.ask();
  const go = (at) => {
    const r = ui.scrub.found, last = r.steps.length - 1;
    ui.scrub.at = at >= last ? null : Math.max(0, at);
    if (ui.scrub.at === null) ui.scrub.moment = null;
    ui.marked = ui.scrub.at === null ? null : r.steps[ui.scrub.at];
    view.ask();
  };
  return {
    ...own,
    input(event) {
      const { dataset, value } = event.target;
      if (!dataset.scrub) return own.input?.(event);
      if (dataset.scrub === "at") go(Number(value));
      else { ui.scrub.moment = Number(value); view.ask(); }
      return true;
    },
    change: (event) => (event.target.dataset.scrub ? true : own.change?.(event)),
    keydown: (event) => (event.target.dataset?.scrub ? false : own.keydown?.(event)),
    click(event) {
      const found = event.target.closest("[data-differs]");
      if (!found) return own.click?.(event);
      go(ui.scrub.found.steps.findIndex((step) => step >= Number(found.dataset.differs)));
      return true;
    },
  };
}
