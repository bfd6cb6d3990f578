// The Pipeline Lab at a step and a moment of its recorded run: what ran on each rank, what it keeps, and the loss.

// A rank's actions in one step as [name, start, end], in the unit of `lane`: from where its message has come, or from the
// first thing that it computes, to the last one.
function actionsIn(lane) {
  const found = new Map();
  for (const { e, start, end } of lane.now) {
    if (!e.action || (e.kind !== "compute" && e.op !== "recv")) continue;
    const one = found.get(e.action) ?? found.set(e.action, { came: [], start: Infinity, end: -Infinity }).get(e.action);
    if (e.kind === "compute") { one.start = Math.min(one.start, start); one.end = Math.max(one.end, end); }
    else if (e.kind === "wait") one.came.push(end);
  }
  const begun = ({ came, start, end }) => Math.max(start, ...came.filter((time) => time < end));
  return [...found].filter(([, one]) => one.end > -Infinity).map(([name, one]) => [name, begun(one), one.end])
    .sort((a, b) => a[1] - b[1]);
}

// Of each stage its first rank; all of them since the first one has begun.
function stagesIn(lanes, count) {
  const found = [...Array(count).keys()].map((n) => actionsIn(lanes[(n * lanes.length) / count]));
  const computes = lanes.flatMap((lane) => lane.now.filter(({ e }) => e.action && e.kind === "compute").map(({ start }) => start));
  return { found, began: Math.min(...computes) };
}

function pipelinePast(s, m) {
  const { r, lanes, cursor, said, when } = m, count = s.lanes.length;
  const { found, began } = stagesIn(lanes, count);
  const ends = (one) => { const now = stagesIn(one, count); return Math.max(...now.found.flat().map(([, , end]) => end)) - now.began; };
  // a step as long as most of them is as wide as the drawn one, so that all of it is in sight
  const tick = usually(r, "step", ends) / s.axis, at = (time) => (time - began) / tick;
  const kept = r.kinds.indexOf("activations"), doing = new Map(), holds = [];
  if (cursor !== null) found.forEach((lane, n) => {
    const { e } = m.now((n * lanes.length) / count), one = lane.find(([, start, end]) => start <= cursor && cursor < end);
    doing.set(n, one?.[0] ?? (cursor < (lane.at(-1)?.[2] ?? 0) ? "waits" : "is done"));
    holds.push(e.live[kept] ?? 0);
  });
  const words = [...doing].map(([n, name]) => `rank ${n} ${name}`).join(", ");
  const ran = { lanes: found.map((lane) => lane.map(([name, start, end]) => [name, at(start), at(end)])) };
  return {
    ...s, loss: { ...s.loss, past: said },
    ran: { ...s.ran, [r.source]: { tick_s: tick / 1e6, span: s.axis, whole: ends(lanes) / tick, ...ran } },
    past: { said: `${capital(said)} (${r.source}).`, words: words && `At ${when}: ${words}.`, doing, holds, unit: unitOfSizes(holds, r, kept), at: cursor === null ? null : at(cursor) },
  };
}

// The unit of what is kept: that of the most at any time.
function unitOfSizes(holds, r, kept) {
  r.most ??= Math.max(0, ...r.rows.map((e) => e.live[kept] ?? 0));
  const [, name] = bytesText(r.most).split(" "), scale = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].indexOf(name);
  return { name, text: (n) => String(Number((n / scale).toPrecision(3))) };
}
