// A lab that is choices and sections, and has no drawing of its own: what its snapshot lists, in that order. A choice
// named "have" is the command set_have.

const fieldsOf = (s) => Object.entries(s).filter(([, field]) => field?.choices);
const FEW = 3; // so many choices are buttons
const control = (command, field, ui) => (field.choices.length > FEW
  ? choice(command, field.label, field, command, ui) : segments(`${command}-`, field.label, field, command, ui));

const { render, mountPage } = lab({
  parts: {
    head: (s, ui) => head(s, html`${fieldsOf(s).map(([name, field]) => control(`set_${name}`, field, ui))}`, ui),
    sections: (s, ui) => html`${Object.keys(s.sections).map((name) => section(s, name, ui))}`,
  },
  measure() {},
});
