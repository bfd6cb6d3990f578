// The numbers in the slice that is looked at (lab/pictures/numbers.py): a map of cells, the value of each on hover and,
// with the arrow keys, on focus. How dark a cell is says how large its number is, a minus which sign it has.

function numberText(v) {
  if (v === null) return "not a number";
  return v && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? v.toExponential(2) : String(Number(v.toPrecision(3)));
}
const spanText = ([first, stop]) => (stop === first + 1 ? `${first}` : `${first}:${stop}`);

function numbers(s, ui) {
  const n = s.numbers, title = html`<h3>Numbers of rank ${s.rank} in ${s.picture.label}
    <small>${n ? times(`${n.source}; ${n.rule}`) : ""}</small></h3>`;
  if (!n) {
    const why = s.numbers_shown ? "This slice has no numbers here: nothing is trained through it."
      : "One step is simulated on all ranks for it.";
    const ask = s.numbers_shown ? "" : html`<button type="button" class="pl-button" data-key="show_numbers"
      data-numbers="1"${disabledUnless(ui, "show_numbers")}>Show the numbers</button> `;
    return html`<div role="group" class="pl-panel" aria-label="numbers">${title}<p class="pl-muted">${ask}${why}</p></div>`;
  }
  const columns = n.columns.length, side = Math.max(16, Math.min(44, Math.floor((ui.width - 60) / columns)));
  const room = side >= 38; // for the number itself
  const cell = (v, r, c) => {
    const share = n.largest && v !== null ? Math.abs(v) / n.largest : 0;
    const where = `[${spanText(n.rows[r])}, ${spanText(n.columns[c])}]`;
    return html`<td class="pl-heat" style="--share:${round(share * 0.72)}" data-heat="${where} = ${numberText(v)}"
      tabindex="${r + c ? -1 : 0}" aria-label="${where}: ${numberText(v)}" title="${where} = ${numberText(v)}">${room
      ? numberText(v) : v < 0 ? "−" : ""}</td>`;
  };
  const head = (ends, scope) => html`<th scope="${scope}">${spanText(ends)}</th>`;
  const row = (values, r) => html`<tr>${head(n.rows[r], "row")}${values.map((v, c) => cell(v, r, c))}</tr>`;
  return html`<div role="group" class="pl-panel" aria-label="numbers">${title}
    <div class="pl-scroll"><table class="pl-heat-map" style="--side:${side}px">
    <thead><tr><td></td>${n.columns.map((ends) => head(ends, "col"))}</tr></thead>
    <tbody>${n.values.map(row)}</tbody></table></div>
    <p class="pl-verdict" data-heat-said="1" aria-live="polite">Point at a cell, or use the arrow keys.</p>
    </div>`;
}

function withNumbers(view, own) {
  const say = ({ target }) => {
    const cell = target.closest?.("[data-heat]");
    if (cell) cell.closest("[role=group]").querySelector("[data-heat-said]").textContent = cell.dataset.heat;
  };
  return {
    ...own,
    mouseover: say,
    focusin: say,
    click(event) {
      const ask = event.target.closest("[data-numbers]");
      if (ask && !ask.disabled) view.send("show_numbers", [true]);
      return ask || own.click(event);
    },
    keydown(event) {
      const cell = event.target.closest?.("[data-heat]");
      const ways = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const [down, across] = ways[event.key] ?? [];
      if (!cell || down === undefined) return own.keydown(event);
      const rows = [...cell.closest("tbody").rows], r = rows.indexOf(cell.parentNode) + down;
      const next = rows[r]?.cells[cell.cellIndex + across];
      if (next?.dataset.heat) {
        cell.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      }
      return true;
    },
  };
}
