// The Fusion Lab at a step and a moment of its recorded run: one rank's backward and its messages (lanes.py reads them
// off events the same way), what is in flight, and the loss.

const RC_S = 1e-6; // of the times of a recording

// The lanes of a rank in one step, in seconds; base: those of another step of the same plan, s.made_by: see lanes.py.
function lanesIn(lane, base, { boxes, messages, after }) {
  const of = new Map(), known = new Set(after);
  let forward_s = 0, backward_s = 0, step_s = 0;
  for (const { e, start, end } of lane.now) {
    step_s = Math.max(step_s, end * RC_S);
    if (e.phase === "forward" && e.kind !== "wait") forward_s = Math.max(forward_s, end * RC_S);
    if (e.phase !== "backward" || (e.kind === "wait" && !e.overlapped)) continue;
    of.set(e.name, { start: start * RC_S, end: end * RC_S });
    if (!known.has(e.name)) backward_s = Math.max(backward_s, end * RC_S);
  }
  backward_s = Math.max(backward_s, forward_s);
  let before = forward_s;
  const made = base.boxes.map((box, k) => {
    const { end } = of.get(boxes[k]), now = { ...box, start_s: before, end_s: end };
    before = end;
    return now;
  });
  let line = 0; // of what was started: messages travel one after the other
  const sent = base.messages.map((m, n) => {
    const { start, end } = of.get(messages[n]), start_s = Math.max(start, line), end_s = line = Math.max(start_s, end);
    const exposed_s = Math.max(0, end_s - Math.max(start_s, backward_s));
    const ready_s = Math.max(...m.members.map((k) => made[k].end_s));
    return { ...m, ready_s, start_s, end_s, exposed_s, hidden_s: end_s - start_s - exposed_s };
  });
  return { forward_s, backward_s, step_s, boxes: made, messages: sent, exposed_s: sent.reduce((sum, m) => sum + m.exposed_s, 0) };
}

function fusionPast(s, m) {
  const { r, lanes, cursor, rank, said, when } = m, [base] = Object.values(s.sections.lanes.of);
  const of = (one) => lanesIn(one[rank], base.lanes, s.made_by), now = of(lanes), at = cursor === null ? null : cursor * RC_S;
  const span = (one) => { const { forward_s, backward_s, messages } = of(one); return Math.max(backward_s, ...messages.map((sent) => sent.end_s)) - forward_s; };
  const flying = at === null ? [] : now.messages.filter((sent) => sent.start_s <= at && at < sent.end_s);
  const air = flying.length ? `${plural(flying.length, "message")} in flight (${bytesText(flying.reduce((sum, sent) => sum + sent.size_bytes, 0))})` : "no message in flight";
  const { does, e } = m.now(rank);
  return {
    ...s, source: { ...s.source, value: r.source }, axis_s: usually(r, `span of ${rank}`, span), tried: null,
    past: { at }, status: `${capital(said)}. A step of ${timeText(now.step_s)}, ${timeText(now.exposed_s)} of sending exposed (${r.source}).`,
    selected: at === null ? "" : `At ${when} rank ${rank}: ${does} (${e.name}); ${air}.`,
    sections: { ...s.sections, lanes: { ...s.sections.lanes, by: null, lanes: now } },
  };
}
