// The graph above the picture. A short network: an edge is a tensor, with its shape and its messages on it. A long one: a node is a layer, with the
// cuts of its result and the number of its messages; it runs in as many lines as it needs. Joined with the other scripts by `front_end()`.

function graph(s, ui) {
  if (s.graph.layers) return flow(s, ui);
  const { nodes, edges } = s.graph;
  const columns = Math.max(1, ...nodes.map((n) => n.column + 1));
  const pad = 8, nodeH = 32, step = Math.max(112, (ui.width - 2 * pad) / columns), rowH = 54;
  const shapes = step >= 140; // shapes on the edges only where they leave room for the names in the nodes
  const nodeW = Math.min(104, step - (shapes ? 76 : 46)), width = step * columns - (step - nodeW) + 2 * pad;
  // Neighbouring parameters stand in different rows, so that the text on an edge has room; where the columns are far apart one row is enough.
  const alone = (n) => nodes.filter((m) => m.column === n.column && m.row > 0).length === 1;
  const rowOf = (n) => (step - nodeW >= 104 && n.row > 0 && alone(n) ? 1 : n.row), height = (Math.max(0, ...nodes.map(rowOf)) + 1) * rowH + 8;
  const place = Object.fromEntries(nodes.map((n) => [n.id, { x: pad + n.column * step, y: 20 + rowOf(n) * rowH }]));
  const tensors = Object.fromEntries(s.tensors.map((t) => [t.id, t]));
  const seen = new Set(), none = !edges.some((e) => e.tensor === s.tensor); // then Tab goes to the first
  const drawn = edges.filter((e) => place[e.from] && place[e.to]).map((e) => {
    const a = place[e.from], b = place[e.to], x0 = a.x + nodeW, y0 = a.y + nodeH / 2, x1 = b.x - 1, y1 = b.y + nodeH / 2;
    const bend = Math.max(18, Math.min(60, (x1 - x0) / 2));
    const on = e.tensor === s.tensor, t = tensors[e.tensor];
    const first = !seen.has(e.tensor);
    seen.add(e.tensor);
    const flat = y0 === y1;
    const room = x1 - x0;
    const numbers = e.messages ?? [];
    const badge = numbers.length ? numbers.map((n) => `#${n}`).join(" ") : "";
    const badgeW = badge.length * 6.4 + 10;
    const shape = t && shapes && first ? shapeText(t.shape) : "", shapeW = shape.length * 6.7;
    // On a level edge the shape stands above the line and the messages on it; an edge that climbs has free space below its start.
    const [lx, ly] = flat ? [x0 + room / 2, y0 - (badge ? 12 : 7)] : [x0 + 8 + shapeW / 2, y0 + 15];
    const [bx, by] = flat ? [x0 + (room - 5) / 2 - badgeW / 2, y0 - 7.5] : [x0 + 8 + (shape ? shapeW + 6 : 0), y0 + 3.5];
    const d = `M${round(x0)} ${round(y0)}C${round(x0 + bend)} ${round(y0)} ${round(x1 - bend)} ${round(y1)} ${round(x1)} ${round(y1)}`;
    const kinds = numbers.map((n) => s.messages.find((m) => m.number === n)?.collective).filter(Boolean);
    const name = `${t ? `${t.label} ${shapeText(t.shape)}` : e.tensor}${numbers.length ? `; messages ${numbers.map((n, i) => `${n} ${kinds[i] ?? ""}`).join(", ")}` : "; no message"}`;
    return html`<g class="pl-edge${on ? " pl-on" : ""}" data-key="${e.from}>${e.to}>${e.tensor}" role="radio" aria-checked="${on}" tabindex="${(on && first) || (none && seen.size === 1 && first) ? 0 : -1}" data-command="select_tensor" data-value="${e.tensor}" aria-label="${name}">
      <title>${name}</title><path class="pl-reach" d="${d}"/><path class="pl-line" d="${d}" marker-end="url(#${ui.id}-arrow)"/>
      ${shape ? html`<text class="pl-edge-shape" x="${round(lx)}" y="${round(ly)}">${shape}</text>` : ""}
      ${badge ? html`<g class="pl-badge" transform="translate(${round(bx)} ${round(by)})"><rect width="${round(badgeW)}" height="15" rx="7.5"/><text x="${round(badgeW / 2)}" y="7.5">${badge}</text></g>` : ""}</g>`;
  });
  const boxes = nodes.map((n) => {
    const { x, y } = place[n.id], made = n.id === s.tensor, cut = n.label.lastIndexOf("."), cx = round(x + nodeW / 2), cy = round(y + nodeH / 2);
    const fit = (text, width) => (text.length * width > nodeW - 6 ? `${text.slice(0, Math.max(3, Math.floor((nodeW - 6) / width) - 1))}…` : text);
    // "dense1.matmul" stands on two lines: what tells operators apart is at the end of the name
    const text = cut < 0 ? html`<text x="${cx}" y="${cy}">${fit(n.label, 7.6)}</text>` : html`<text class="pl-cell" x="${cx}" y="${cy - 7}">${fit(n.label.slice(0, cut), 6.2)}</text><text x="${cx}" y="${cy + 6}">${fit(n.label.slice(cut + 1), 7.6)}</text>`;
    return html`<g class="pl-node pl-node-${n.kind}${made ? " pl-on" : ""}" data-key="${n.id}" aria-hidden="true"><title>${n.label}, ${n.kind}</title>
      <rect x="${round(x)}" y="${round(y)}" width="${round(nodeW)}" height="${nodeH}" rx="${n.kind === "operator" ? 5 : nodeH / 2}"/>${text}</g>`;
  });
  return html`<section class="pl-graph" aria-label="operator graph"><svg viewBox="0 0 ${round(width)} ${height}" width="${round(width)}" height="${height}" role="radiogroup" aria-label="tensors on the edges of the operator graph" data-roving="1">${drawn}${boxes}</svg></section>`;
}

// ---- a long network, layer by layer ----

// A line through `points` with right angles and round corners.
function elbow(points) {
  const parts = [`M${round(points[0][0])} ${round(points[0][1])}`];
  for (let i = 1; i < points.length - 1; i += 1) {
    const [x, y] = points[i], before = points[i - 1], after = points[i + 1];
    const near = ([px, py]) => { const far = Math.abs(px - x) + Math.abs(py - y), r = Math.min(6, far / 2) / (far || 1); return [round(x + (px - x) * r), round(y + (py - y) * r)]; };
    parts.push(`L${near(before).join(" ")}Q${round(x)} ${round(y)} ${near(after).join(" ")}`);
  }
  const [x, y] = points.at(-1);
  return `${parts.join("")}L${round(x)} ${round(y)}`;
}

// How many messages a layer needs forward and backward; slices send nothing.
function traffic(s, node) {
  const sent = s.messages.filter((m) => node.messages.includes(m.number) && m.group.length);
  return { forward: sent.filter((m) => m.phase === "forward").length, backward: sent.filter((m) => m.phase !== "forward").length };
}

function flow(s, ui) {
  const nodes = [...s.graph.nodes].sort((a, b) => a.column - b.column || a.row - b.row), at = Object.fromEntries(nodes.map((n) => [n.id, n]));
  const columns = Math.max(...nodes.map((n) => n.column)) + 1, pad = 14, width = ui.width - 4;
  const lines = Math.ceil(columns / Math.max(3, Math.floor((width - 2 * pad) / 108))), perLine = Math.ceil(columns / lines);
  const step = (width - 2 * pad) / perLine, nodeW = Math.min(118, step - 24), nodeH = 42, rowH = 62, track = 9;
  const lineOf = (n) => Math.floor(n.column / perLine), rows = Array.from({ length: lines }, (_, l) => Math.max(0, ...nodes.filter((n) => lineOf(n) === l).map((n) => n.row)) + 1);
  // An edge that passes other nodes, or goes on in the next line, runs in a track of its own above the line it ends in.
  const tracks = Array(lines).fill(0);
  const routes = s.graph.edges.filter((e) => at[e.from] && at[e.to]).map((e) => {
    const a = at[e.from], b = at[e.to], line = lineOf(b), far = lineOf(a) !== line;
    const blocked = nodes.some((n) => n.column > a.column && n.column < b.column && (n.row === a.row || n.row === b.row));
    return { e, a, b, line, raised: far || blocked ? (tracks[line] += 1) : 0 };
  });
  const top = [];
  let height = 4;
  for (let l = 0; l < lines; l += 1) { height += 6 + tracks[l] * track; top.push(height); height += rows[l] * rowH; }
  const place = (n) => ({ x: pad + (n.column % perLine) * step + (step - nodeW) / 2, y: top[lineOf(n)] + n.row * rowH });
  const layer = s.tensors.find((t) => t.id === s.tensor)?.layer;
  const drawn = routes.map(({ e, a, b, line, raised }) => {
    const p = place(a), q = place(b), x0 = p.x + nodeW, y0 = p.y + nodeH / 2, x1 = q.x - 1, y1 = q.y + nodeH / 2, bend = Math.max(10, (x1 - x0) / 2);
    const level = top[line] - 4 - (raised - 1) * track;
    const d = raised ? elbow([[x0, y0], [x0 + 9, y0], [x0 + 9, level], [x1 - 12, level], [x1 - 12, y1], [x1, y1]]) : `M${round(x0)} ${round(y0)}C${round(x0 + bend)} ${round(y0)} ${round(x1 - bend)} ${round(y1)} ${round(x1)} ${round(y1)}`;
    return html`<g class="pl-edge pl-flow${e.tensor === s.tensor ? " pl-on" : ""}" data-key="${e.from}>${e.to}" aria-hidden="true"><path class="pl-line" d="${d}" marker-end="url(#${ui.id}-arrow)"/></g>`;
  });
  const isOn = (n) => Boolean(n.tensor) && (n.id === layer || n.tensor === s.tensor), reached = nodes.find(isOn) ?? nodes[0]; // by Tab
  const boxes = nodes.map((n) => {
    const { x, y } = place(n), cx = round(x + nodeW / 2), { forward, backward } = traffic(s, n), own = isOn(n);
    const small = n.label.length * 8.4 > nodeW - 6, most = Math.floor((nodeW - 6) / (small ? 7.1 : 8.4)); // pixels per letter, bold
    const label = n.label.length > most ? `${n.label.slice(0, Math.max(3, most - 1))}…` : n.label;
    const badge = [forward ? `→${forward}` : "", backward ? `←${backward}` : ""].filter(Boolean).join(" "), badgeW = badge.length * 6.6 + 10;
    const cuts = n.cuts?.length ? shapeText(n.cuts) : "";
    const name = `${n.id}, ${n.detail}${cuts ? `; slices per dim of its result ${cuts}` : ""}; messages: ${forward} forward, ${backward} backward`;
    const role = n.tensor ? html` role="radio" aria-checked="${own}" tabindex="${n === reached ? 0 : -1}" data-command="select_tensor" data-value="${n.tensor}"${flag("disabled", !ui.can("select_tensor", n.tensor))}` : html` role="img"`;
    return html`<g class="pl-node pl-flow pl-node-${n.kind}${own ? " pl-on" : ""}" data-key="${n.id}"${role} aria-label="${name}"><title>${name}</title>
      <rect x="${round(x)}" y="${round(y)}" width="${round(nodeW)}" height="${nodeH}" rx="${n.kind === "operator" ? 5 : nodeH / 2}"/>
      <text class="${small ? "pl-small" : ""}" x="${cx}" y="${y + (cuts ? 12 : 20)}">${label}</text>${cuts ? html`<text class="pl-cuts" x="${cx}" y="${y + 26}">${cuts}</text>` : ""}
      ${badge ? html`<g class="pl-badge" transform="translate(${round(x + nodeW / 2 - badgeW / 2)} ${y + nodeH - 5})"><rect class="pl-count" width="${round(badgeW)}" height="15" rx="7.5"/><text x="${round(badgeW / 2)}" y="7.5">${badge}</text></g>` : ""}</g>`;
  });
  return html`<section class="pl-graph" aria-label="layers of the network"><svg viewBox="0 0 ${round(width)} ${round(height)}" width="${round(width)}" height="${round(height)}" role="radiogroup" aria-label="layers of the network" data-roving="1">${drawn}${boxes}</svg>
    <p class="pl-graph-key">under a layer's name: slices per dim of its result · <b>→</b> messages forward, <b>←</b> backward</p></section>`;
}
