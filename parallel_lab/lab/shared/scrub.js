// A recorded run (lab/shared/recording.py), stepped through: which step is looked at, and which moment of it. The kernel
// is not asked: parts of a lab draw a snapshot that is made of the present one.
//
//   inPast(make, parts)    parts of a lab that draw the past;  scrubBar, or scrubber and momentSlider: what chooses it
//   withScrub(view, own)   handlers of a lab with them

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
  const row = ([phase, kind, name, op, overlapped, group, bytes, message, live, action]) => (
    { phase, kind, name, op, overlapped, group, bytes, message, live, action });
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
      now.push({ e, i, start, end, began });
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

// What is known of the chosen step and moment of the recorded run; null: the present is shown.
//   at, d        places of the step, and of the one whose times are known, among those that are kept
//   lanes        of each rank its instructions, timed;  whole: when the last one ended;  cursor: the moment, or null
//   now, losses  of a rank: the instruction it is at, the loss;  said: step and loss in words;  when: the moment
function momentOf(s, ui) {
  const r = recordingOf(s, ui), here = ui.scrub;
  // a moment or a source that somebody chooses is one of the present
  const stands = `${valueOf(s.moment)} ${valueOf(s.source)}`, left = (here.stands ?? stands) !== stands;
  if (left) { here.at = here.moment = null; ui.marked = null; }
  here.stands = !r || here.at === null ? null : stands;
  if (!here.stands) return null;
  const made = `${here.at} ${here.moment} ${rankOf(s, ui)}`;
  if (here.made === made) return here.found_at;
  const ranks = r.lanes.length, at = here.at, d = Math.max(0, r.timed.findLastIndex((place) => place <= at));
  if (here.timed?.d !== d) {
    const lanes = recordedLanes(r, d);
    here.timed = { d, lanes, whole: Math.max(...lanes.flatMap((lane) => lane.now.map((one) => one.end))) };
  }
  const { lanes, whole } = here.timed, cursor = here.moment === null ? null : (here.moment / 1000) * whole;
  const losses = (rank) => r.losses[at * ranks + rank], rank = Math.min(rankOf(s, ui), ranks - 1);
  const same = [...Array(ranks).keys()].every((one) => losses(one) === losses(0));
  const said = `step ${r.steps[at]}: loss ${smallText(losses(rank))} ${same ? "on every rank" : `on rank ${rank}`}`;
  const timed = r.steps[r.timed[d]], source = timed === r.steps[at] ? r.source : `${r.source}: step ${timed}`;
  const now = (one) => doesAt(lanes[one], cursor ?? 0), when = timeText((cursor ?? 0) * 1e-6);
  Object.assign(here, { made, found_at: { r, at, d, lanes, whole, cursor, rank, losses, said, source, now, when } });
  return here.found_at;
}

// The rank that is looked at: the lab's, or the one chosen next to the sliders.
const rankOf = (s, ui) => ui.scrub.rank ?? (typeof s.rank === "number" ? s.rank : 0);

const capital = (text) => text[0].toUpperCase() + text.slice(1);

// Parts of a lab that draw the snapshot which `make` (s, m, ui) has of the chosen moment.
function inPast(make, parts) {
  const past = (s, ui) => {
    const m = momentOf(s, ui), here = ui.scrub;
    if (!m) return s;
    if (here.of !== s || here.from !== m) Object.assign(here, { of: s, from: m, past: make(s, m, ui) });
    return here.past;
  };
  return Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, (s, ui) => part(past(s, ui), ui)]));
}

// What most of the recorded steps stay within, so that an axis stands still.  of: (lanes) => a number of a step
function usually(r, name, of) {
  r.known ??= {};
  if (!(name in r.known)) {
    const found = [...r.timed.keys()].map((d) => of(recordedLanes(r, d))).sort((a, b) => a - b);
    r.known[name] = found[Math.floor(0.75 * (found.length - 1))];
  }
  return r.known[name];
}

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
const momentSlider = (ui, when) => html`<label class="pl-field pl-at"><span>moment</span><input type="range"
  class="pl-moment" data-key="moment" data-scrub="moment" min="0" max="1000" step="5" value="${ui.scrub.moment ?? 0}"
  aria-label="moment of the recorded step" aria-valuetext="${when}"></label>`;

// Both in a line of their own, whose room is there before: step, moment, rank (unless the lab chooses it), a way back, and
// whether slices differ from their copies.
function scrubBar(s, ui, { ranks = false, without = "Simulate and Measure record their steps: a slider over them stands here then." } = {}) {
  const r = recordingOf(s, ui), m = r && momentOf(s, ui);
  if (!r) return html`<div class="pl-scrubs"><p class="pl-muted">${ui.live ? without : "No run is kept here."}</p></div>`;
  const one = (_, rank) => html`<option value="${rank}" data-key="${rank}"${flag("selected", rank === rankOf(s, ui))}>${rank}</option>`;
  const which = html`<label class="pl-field"><span>rank</span><select data-key="of-rank" data-scrub="rank">${r.lanes.map(one)}</select></label>`;
  return html`<div class="pl-scrubs" role="group" aria-label="recorded run"><span class="pl-muted" title="${r.said}">${r.source} run</span>
    ${scrubber(s, ui)}${momentSlider(ui, m?.when ?? "0 s")}<output class="pl-when">${m?.cursor == null ? "" : m.when}</output>
    ${ranks ? which : ""}<span class="pl-differs">${whereDiffers(s, ui)}</span><button type="button"
    class="pl-button${m ? "" : " pl-away"}" data-key="present" data-scrub="present" title="leave the recorded run">Present</button></div>`;
}

// Whether the selected rank's slices were what they are elsewhere; a button leads to where they were not.
function whereDiffers(s, ui) {
  const r = recordingOf(s, ui), own = r && rankOf(s, ui), found = r?.differs.find(([rank]) => rank === own);
  const copies = r?.holders.some((mine) => mine[own] && mine.filter((one) => one === mine[own]).length > 1);
  if (!r || (!found && !copies)) return "";
  if (!found) return html` <span class="pl-good" title="${r.verdict}">✓ equal at every step</span>`;
  const [, step] = found;
  return html` <button type="button" class="pl-button pl-wrong" data-key="differs" data-differs="${step}"
    title="${r.verdict}">✗ differs at step ${step}</button>`;
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
      else {
        if (dataset.scrub === "moment") ui.scrub.at ??= ui.scrub.found.steps.length - 1;
        ui.scrub[dataset.scrub] = Number(value);
        ui.marked = ui.scrub.found.steps[ui.scrub.at] ?? null;
        view.ask();
      }
      return true;
    },
    change: (event) => (event.target.dataset.scrub ? true : own.change?.(event)),
    keydown: (event) => (event.target.dataset?.scrub ? false : own.keydown?.(event)),
    click(event) {
      if (event.target.closest("[data-scrub=present]")) { go(Infinity); return true; }
      const found = event.target.closest("[data-differs]");
      if (!found) return own.click?.(event);
      go(ui.scrub.found.steps.findIndex((step) => step >= Number(found.dataset.differs)));
      return true;
    },
  };
}
