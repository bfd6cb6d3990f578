// The graph above the picture. A short network: an edge is a tensor, with its shape and its messages on it. A long one:
// a node is a layer, with the slices of its result and the number of its messages; it runs in as many lines as it
// needs.

function curve(x0, y0, x1, y1, bend) {
  const [from, to] = [round(y0), round(y1)];
  return `M${round(x0)} ${from}C${round(x0 + bend)} ${from} ${round(x1 - bend)} ${to} ${round(x1)} ${to}`;
}

const frameOf = (n, x, y, w, h) => html`<rect x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${h}"
  rx="${n.kind === "operator" ? 5 : h / 2}"/>`;
const shortened = (text, most) => (text.length > most ? `${text.slice(0, Math.max(3, most - 1))}…` : text);

function badgeAt(text, x, y, w, look = "") {
  return html`<g class="pl-badge" transform="translate(${round(x)} ${round(y)})">
    <rect${new Raw(look)} width="${round(w)}" height="15" rx="7.5"/>
    <text x="${round(w / 2)}" y="7.5">${text}</text></g>`;
}

function drawing(label, about, width, height, content) {
  return html`<div role="group" class="pl-graph" aria-label="${label}"><span class="pl-more" data-key="more"></span><svg
    viewBox="0 0 ${round(width)} ${round(height)}"
    width="${round(width)}" height="${round(height)}" role="radiogroup" aria-label="${about}"
    data-roving="1">${content}</svg></div>`;
}

// Without room to draw: the tensors, as buttons.
function edgeList(s, ui) {
  const { nodes, edges } = s.graph, none = edges.every((e) => e.tensor !== s.tensor);
  const labels = Object.fromEntries(nodes.map((n) => [n.id, n.label]));
  const one = (e, i) => {
    const on = e.tensor === s.tensor, sent = (e.messages ?? []).map((n) => `#${n}`).join(" ");
    return html`<button type="button" role="radio" aria-checked="${on}" tabindex="${on || (none && !i) ? 0 : -1}"
      data-key="${e.from}>${e.to}>${e.tensor}" data-command="select_tensor" data-value="${e.tensor}"
      ${flag("disabled", !ui.can("select_tensor", e.tensor))}>
      ${labels[e.from]} → ${labels[e.to]} <b>${sent}</b></button>`;
  };
  return html`<div role="group" class="pl-graph" aria-label="operator graph"><div class="pl-edges" role="radiogroup"
    aria-label="tensors between operators" data-roving="1">${edges.map(one)}</div></div>`;
}

function graph(s, ui) {
  if (s.graph.layers) return flow(s, ui);
  const { nodes, edges } = s.graph;
  const columns = Math.max(1, ...nodes.map((n) => n.column + 1));
  if (ui.width < 112 * columns) return edgeList(s, ui);
  const pad = 8, nodeH = 28, step = (ui.width - 2 * pad) / columns, rowH = 38;
  const shapes = step >= 140; // shapes on the edges only where they leave room for the names in the nodes
  const nodeW = Math.min(104, step - (shapes ? 76 : 46)), width = step * columns - (step - nodeW) + 2 * pad;
  // Neighbouring parameters of the snapshot stand in different rows; here what is said of them stands below them, and
  // one row is enough.
  const alone = (n) => nodes.filter((m) => m.column === n.column && m.row > 0).length === 1;
  const rowOf = (n) => (n.row > 0 && alone(n) ? 1 : n.row);
  const height = (Math.max(0, ...nodes.map(rowOf)) + 1) * rowH + 28;
  const place = Object.fromEntries(nodes.map((n) => [n.id, { x: pad + n.column * step, y: 20 + rowOf(n) * rowH }]));
  const tensors = Object.fromEntries(s.tensors.map((t) => [t.id, t]));
  const seen = new Set(), none = !edges.some((e) => e.tensor === s.tensor); // then Tab goes to the first
  const drawn = edges.filter((e) => place[e.from] && place[e.to]).map((e) => {
    const a = place[e.from], b = place[e.to];
    const x0 = a.x + nodeW, y0 = a.y + nodeH / 2, x1 = b.x - 1, y1 = b.y + nodeH / 2;
    const bend = Math.max(18, Math.min(60, (x1 - x0) / 2)), flat = y0 === y1, room = x1 - x0;
    const on = e.tensor === s.tensor, t = tensors[e.tensor], first = !seen.has(e.tensor), numbers = e.messages ?? [];
    seen.add(e.tensor);
    const all = numbers.map((n) => `#${n}`).join(" "), wide = (text) => text.length * 6.4 + 10;
    const badge = flat && wide(all) > room - 8 ? `×${numbers.length}` : all, badgeW = wide(badge);
    const shown = badge === all ? numbersOf(s, numbers) : badge;
    const shape = t && shapes && first ? shapeText(t.shape) : "", shapeW = shape.length * 6.7;
    // On a level edge the shape stands above the line and the messages on it; on one that climbs, both below its start.
    const below = a.x + nodeW / 2 - (shapeW + (badge && shape ? 5 : 0) + (badge ? badgeW : 0)) / 2;
    const [lx, ly] = flat ? [x0 + room / 2, y0 - (badge ? 12 : 7)] : [below + shapeW / 2, y0 + nodeH / 2 + 11];
    const bx = flat ? x0 + (room - 5 - badgeW) / 2 : below + (shape ? shapeW + 5 : 0);
    const by = flat ? y0 - 7.5 : y0 + nodeH / 2 + 3;
    const d = curve(x0, y0, x1, y1, bend);
    const kind = (n) => s.messages.find((m) => m.number === n)?.collective ?? "";
    const sent = numbers.length ? `messages ${numbers.map((n) => `${n} ${kind(n)}`).join(", ")}` : "no message";
    const name = `${t ? `${t.label} ${shapeText(t.shape)}` : e.tensor}; ${sent}`;
    const reached = first && (on || (none && seen.size === 1));
    return html`<g class="pl-edge${on ? " pl-on" : ""}" data-key="${e.from}>${e.to}>${e.tensor}" role="radio"
        aria-checked="${on}" tabindex="${reached ? 0 : -1}" data-command="select_tensor" data-value="${e.tensor}"><title>${name}</title><path class="pl-reach" d="${d}"/>
      <path class="pl-line" d="${d}" marker-end="url(#${ui.id}-arrow)"/>
      ${shape ? html`<text class="pl-edge-shape" x="${round(lx)}" y="${round(ly)}">${shape}</text>` : ""}
      ${badge ? badgeAt(shown, bx, by, badgeW) : ""}</g>`;
  });
  const boxes = nodes.map((n) => {
    const { x, y } = place[n.id], dot = n.label.lastIndexOf("."), cx = round(x + nodeW / 2), cy = round(y + nodeH / 2);
    const fit = (text, letter) => shortened(text, Math.floor((nodeW - 6) / letter));
    // "dense1.matmul" stands on two lines: what tells operators apart is at the end of the name
    const text = dot < 0 ? html`<text x="${cx}" y="${cy}">${fit(n.label, 7.6)}</text>`
      : html`<text class="pl-cell" x="${cx}" y="${cy - 7}">${fit(n.label.slice(0, dot), 6.2)}</text>
        <text x="${cx}" y="${cy + 6}">${fit(n.label.slice(dot + 1), 7.6)}</text>`;
    return html`<g class="pl-node pl-node-${n.kind}${n.id === s.tensor ? " pl-on" : ""}" data-key="${n.id}"
      aria-hidden="true"><title>${n.label}, ${n.kind}</title>${frameOf(n, x, y, nodeW, nodeH)}${text}</g>`;
  });
  return drawing("operator graph", "tensors on the edges of the operator graph", width, height, [drawn, boxes]);
}

// ---- a long network, layer by layer ----

// A line through `points` with right angles and round corners.
function elbow(points) {
  const parts = [`M${round(points[0][0])} ${round(points[0][1])}`];
  for (let i = 1; i < points.length - 1; i += 1) {
    const [x, y] = points[i];
    const near = ([px, py]) => {
      const far = Math.abs(px - x) + Math.abs(py - y), r = Math.min(6, far / 2) / (far || 1);
      return `${round(x + (px - x) * r)} ${round(y + (py - y) * r)}`;
    };
    parts.push(`L${near(points[i - 1])}Q${round(x)} ${round(y)} ${near(points[i + 1])}`);
  }
  const [x, y] = points.at(-1);
  return `${parts.join("")}L${round(x)} ${round(y)}`;
}

// How many messages a layer needs forward and backward; slices send nothing.
function traffic(s, node) {
  const sent = s.messages.filter((m) => node.messages.includes(m.number) && m.group.length);
  const forward = sent.filter((m) => m.phase === "forward").length;
  return { forward, backward: sent.length - forward };
}

function flow(s, ui) {
  const nodes = [...s.graph.nodes].sort((a, b) => a.column - b.column || a.row - b.row);
  const at = Object.fromEntries(nodes.map((n) => [n.id, n])), columns = Math.max(...nodes.map((n) => n.column)) + 1;
  const pad = 14, width = ui.width - 4, nodeH = 30, rowH = 43, track = 7;
  const lines = Math.ceil(columns / Math.max(3, Math.floor((width - 2 * pad) / 106)));
  const perLine = Math.ceil(columns / lines), step = (width - 2 * pad) / perLine, nodeW = Math.min(112, step - 20);
  const lineOf = (n) => Math.floor(n.column / perLine), inLine = (line) => nodes.filter((n) => lineOf(n) === line);
  // An edge that passes other nodes, or goes on in the next line, runs in a track of its own above the line it ends in.
  const tracks = Array(lines).fill(0);
  const routes = s.graph.edges.filter((e) => at[e.from] && at[e.to]).map((e) => {
    const a = at[e.from], b = at[e.to], line = lineOf(b), between = (n) => n.column > a.column && n.column < b.column;
    const blocked = nodes.some((n) => between(n) && (n.row === a.row || n.row === b.row));
    return { e, a, b, line, raised: lineOf(a) !== line || blocked ? (tracks[line] += 1) : 0 };
  });
  const top = [];
  let height = 2;
  for (let line = 0; line < lines; line += 1) {
    height += 6 + tracks[line] * track;
    top.push(height);
    height += (Math.max(0, ...inLine(line).map((n) => n.row)) + 1) * rowH;
  }
  const place = (n) => ({
    x: pad + (n.column % perLine) * step + (step - nodeW) / 2,
    y: top[lineOf(n)] + n.row * rowH,
  });
  const layer = s.tensors.find((t) => t.id === s.tensor)?.layer;
  const drawn = routes.map(({ e, a, b, line, raised }) => {
    const p = place(a), q = place(b), x0 = p.x + nodeW, y0 = p.y + nodeH / 2, x1 = q.x - 1, y1 = q.y + nodeH / 2;
    const level = top[line] - 4 - (raised - 1) * track;
    const around = [[x0, y0], [x0 + 9, y0], [x0 + 9, level], [x1 - 12, level], [x1 - 12, y1], [x1, y1]];
    const d = raised ? elbow(around) : curve(x0, y0, x1, y1, Math.max(10, (x1 - x0) / 2));
    return html`<g class="pl-edge pl-flow${e.tensor === s.tensor ? " pl-on" : ""}" data-key="${e.from}>${e.to}"
      aria-hidden="true"><path class="pl-line" d="${d}" marker-end="url(#${ui.id}-arrow)"/></g>`;
  });
  const isOn = (n) => Boolean(n.tensor) && (n.id === layer || n.tensor === s.tensor);
  const reached = nodes.find(isOn) ?? nodes[0]; // by Tab
  const boxes = nodes.map((n) => {
    const { x, y } = place(n), cx = round(x + nodeW / 2), { forward, backward } = traffic(s, n), own = isOn(n);
    const small = n.label.length * 8.4 > nodeW - 6;
    const label = shortened(n.label, Math.floor((nodeW - 6) / (small ? 7.1 : 8.4))); // pixels per letter, bold
    const badge = [forward ? `→${forward}` : "", backward ? `←${backward}` : ""].filter(Boolean).join(" ");
    const badgeW = badge.length * 6.6 + 10, cuts = n.cuts?.length ? shapeText(n.cuts) : "";
    const slices = cuts ? `; slices per dim of its result ${cuts}` : "";
    const name = `${n.id}, ${n.detail}${slices}; messages: ${forward} forward, ${backward} backward`;
    const role = n.tensor ? html` role="radio" aria-checked="${own}" tabindex="${n === reached ? 0 : -1}"
      data-command="select_tensor" data-value="${n.tensor}"
      ${flag("disabled", !ui.can("select_tensor", n.tensor))}` : html` role="img"`;
    return html`<g class="pl-node pl-flow pl-node-${n.kind}${own ? " pl-on" : ""}" data-key="${n.id}"${role}><title>${name}</title>${frameOf(n, x, y, nodeW, nodeH)}
      <text class="${small ? "pl-small" : ""}" x="${cx}" y="${y + (cuts ? 9 : 15)}">${label}</text>
      ${cuts ? html`<text class="pl-cuts" x="${cx}" y="${y + 20}">${cuts}</text>` : ""}
      ${badge ? badgeAt(badge, x + nodeW / 2 - badgeW / 2, y + nodeH - 4, badgeW, ' class="pl-count"') : ""}</g>`;
  });
  return drawing("layers of the network", "layers of the network", width, height, [drawn, boxes]);
}
