// A lab that is choices and sections, and has no drawing of its own: what its snapshot lists, in that order; sections
// with "tab" are behind tabs. A choice named "have" is the command set_have.

const fieldsOf = (s) => Object.entries(s).filter(([, field]) => field?.choices);

const plainTabs = (s, ui) => {
  const behind = Object.keys(s.sections).filter((name) => s.sections[name].tab);
  return behind.length ? tabs(ui, sectionTabs(s, ui, behind.map((name) => [name, s.sections[name].title]), false)) : "";
};

const { render, mountPage } = lab({
  story: typeof STORY === "undefined" ? undefined : STORY,
  parts: {
    head: (s, ui) => head(s, html`${fieldsOf(s).map(([name, field]) => control(`set_${name}`, field, ui))}`, ui),
    sections: (s, ui) => html`${Object.keys(s.sections).filter((name) => !s.sections[name].tab)
      .map((name) => section(s, name, ui))}${plainTabs(s, ui)}`,
  },
  measure(ui, root) { ui.width = Math.max(280, Math.floor(root.clientWidth || 940) - 8); },
});
