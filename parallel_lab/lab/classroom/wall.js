// The classroom wall: one learner's lab at a time, names, right answers (wall.py).
{
  const wall = document.querySelector(".wall");
  const ones = [...document.querySelectorAll(".pl-page > [id^=lab]")];
  const numberOf = (lab) => lab.id.slice(3) || "1";
  const show = (number) => {
    for (const lab of ones) {
      const on = numberOf(lab) === number;
      lab.classList.toggle("wall-away", !on);
      lab.inert = !on;
      document.getElementById(lab.id.replace("lab", "words")).hidden = !on;
    }
    for (const one of wall.querySelectorAll("[data-lab]")) one.setAttribute("aria-pressed", one.dataset.lab === number);
    document.querySelector(".pl-alone").hidden = number === null;
  };
  const choose = (one) => {
    show(one.dataset.lab);
    const name = wall.querySelector(`button[data-lab="${one.dataset.lab}"]`).textContent;
    const title = document.getElementById("wall-shown");
    title.textContent = `What ${name} handed in`;
    title.scrollIntoView({ block: "start" });
    title.focus({ preventScroll: true });
  };
  for (const one of wall.querySelectorAll("[data-lab]")) {
    one.addEventListener("click", () => choose(one));
    one.addEventListener("keydown", (event) => {
      if (one.tagName !== "BUTTON" && (event.key === "Enter" || event.key === " ")) {
        event.preventDefault();
        choose(one);
      }
    });
  }
  for (const button of wall.querySelectorAll(".wall-reveal")) {
    button.addEventListener("click", () => {
      const section = button.closest("section");
      const on = section.classList.toggle("wall-revealed");
      section.querySelector(".wall-told").hidden = !on;
      button.textContent = on ? "Cover" : "Reveal";
      button.setAttribute("aria-expanded", on);
    });
  }
  const names = wall.querySelector(".wall-names");
  const spans = [...wall.querySelectorAll(".wall-name")].map((span) => [span, span.textContent, span.dataset.number]);
  const labels = [...wall.querySelectorAll(".wall-point")].map((point) => [point, point.getAttribute("aria-label")]);
  const words = wall.querySelector("pre").closest("details");
  names.addEventListener("click", () => {
    const hidden = names.getAttribute("aria-pressed") !== "true";
    names.setAttribute("aria-pressed", hidden);
    for (const [span, name, number] of spans) span.textContent = hidden ? number : name;
    for (const [point, label] of labels) point.setAttribute("aria-label", hidden ? label.replace(/, .*?: /, ": ") : label);
    words.hidden = hidden; // it has the names
    document.getElementById("wall-shown").textContent = "Choose a learner above to see a layout";
    show(null);
  });
  show(null);
}
