// The Rosetta Lab: what each axis of the mesh does, a card per rank, and five notations that can be typed into. The
// cells of the notations are in sections.js: any lab may have them.

const RO_COLUMNS = 4; // cards in a row: a rank keeps its place when the mesh changes

function roCard(s, ui, c, dims, room, mine) {
  const on = c === mine, near = on ? " pl-selected" : mine.addends.includes(c.rank) ? " pl-team" : mine.same.includes(c.rank) ? " pl-copy" : "";
  const look = { partial: c.addends.length > 0, id: ui.id };
  return html`<button type="button" role="radio" class="pl-ro-card${near}" title="${c.at.join(", ")}" aria-checked="${on}" tabindex="${on ? 0 : -1}"
    data-key="card${c.rank}" data-command="set_rank" data-value="${c.rank}" data-number="1"${disabledUnless(ui, "set_rank", c.rank)}>
    <span class="pl-ro-head"><b>${c.rank}</b> ${c.at.length > 2 ? c.at.map((one) => one.split(" ")[1]).join(" ") : c.at.join(" ")}</span>
    ${cardPicture(room, c.blocks.map((block) => blockMark(blockBox({ block }, dims, room), c.slice, look)))}
    <span class="pl-ro-text">${c.text.map((part) => html`<span>${part}</span> `)}</span></button>`;
}

function roCards(s, ui) {
  const dims = plane(s.picture), room = frame(s.picture.shape, dims, 52), mine = s.cards[s.rank.value];
  return html`<div class="pl-ro-cards" role="radiogroup" aria-label="ranks" data-roving="${RO_COLUMNS}">
    ${s.cards.map((c) => roCard(s, ui, c, dims, room, mine))}</div>
    <div class="pl-ro-said">${forChoices(s.sections.rank, s).notes.map((note) => html`<p>${note}</p>`)}</div>
    <p class="pl-muted">Colour and number: which slice. Hatched: an addend. Dashed: adds up with the chosen rank.</p>`;
}

const RO_AXES = ["dp", "cp", "tp", "outer"];
function roAxes(s, ui) {
  const known = RO_AXES.filter((name) => s[name]);
  return html`<div class="pl-ro-axes">${known.map((name) => control(`set_${name}`, s[name], ui, 5))}
    ${known.length ? "" : html`<p class="pl-muted">This mesh has axes of its own: type into a notation, or choose another mesh.</p>`}</div>`;
}

// What each axis makes of the tensor, and of its gradient before a message adds it up.
const roTypes = (s) => html`<p class="pl-muted pl-ro-types" title="along ${s.types.map(([name]) => name).join(", ")}: ${s.sections.types.notes[1]}">type
  ${typesOf(s.types)}</p>`;

const roHead = (s, ui) => head(s, html`${["mesh", "shape"].map((name) => choice(`set_${name}`, s[name].label, s[name], `set_${name}`, ui))}`, ui);
const RO_TABS = [["forms", "Five notations"], ["more", "More notations"], ["ranks", "Ranks"], ["python", "Code"]];

const { render, mountPage } = lab({
  classes: ["pl-ro"],
  story: STORY,
  tab: "forms",
  parts: {
    patterns: (s, ui) => patterns(ui.id),
    head: roHead,
    axes: roAxes,
    types: roTypes,
    cards: roCards,
    forms: (s, ui) => tabs(ui, sectionTabs(s, ui, RO_TABS, false)),
  },
  skeleton: html`${slot("patterns")}<div class="pl-top">${slot("head")}</div><div class="pl-ro-main"><div class="pl-ro-left">
    ${slot("axes")}${slot("types")}${slot("cards")}</div><div class="pl-ro-forms">${slot("forms")}</div></div>`,
  // What was refused stays in its field, to be mended.
  commit(field, text, view) {
    view.ui.drafts.set(field, text);
    view.send("set_form", [field.slice("form-".length), text]);
  },
  shown({ ui, snapshot }) { if (!snapshot.last_error) ui.drafts.clear(); },
});
