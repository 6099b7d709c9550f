"use strict";
// Tables sort by a click on a heading: numbers by their value, else as text; what has no value stays last.
function key(row, column) {
  const cell = row.children[column];
  return "key" in cell.dataset ? Number(cell.dataset.key) : cell.textContent.trim();
}
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}
function missing(value) {
  return value === "–" || value === "" || Number.isNaN(value);
}
function sort(table, column, direction) {
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
    const keyed = rows.map((row) => [key(row, column), row]);
    keyed.sort(([a], [b]) => missing(a) - missing(b) || (missing(a) ? 0 : direction * compare(a, b)));
    body.append(...keyed.map(([, row]) => row));
  }
}
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    if (!heading.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      // The first click shows the largest numbers, or texts from A to Z; every further one turns the order round.
      const before = heading.getAttribute("aria-sort");
      const direction = before ? (before === "ascending" ? -1 : 1) : heading.classList.contains("n") ? -1 : 1;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
      sort(table, column, direction);
    });
  });
}

// Each view gets a slider between the truth and what a cell rendered, in the truth's place; the slider is an input,
// so that keys move it too.
for (const view of document.querySelectorAll(".views")) {
  const truth = view.querySelector("img.truth");
  const renders = [...view.querySelectorAll("img.render")];
  if (!truth || !renders.length) continue;
  const slider = document.createElement("figure");
  slider.className = "slider";
  slider.innerHTML =
    '<div class="pair"><img alt="truth"><img class="over" alt=""><input type="range" min="0" max="100" value="50" step="1"></div>' +
    '<figcaption><span></span> <label>against <select></select></label></figcaption>';
  const [under, over] = slider.querySelectorAll("img");
  const range = slider.querySelector("input");
  const select = slider.querySelector("select");
  const original = truth.closest("figure");
  under.src = truth.src;
  slider.querySelector("span").append(...original.querySelector("figcaption").cloneNode(true).childNodes);
  for (const render of renders) select.add(new Option(render.alt));
  const show = () => {
    const render = renders[select.selectedIndex];
    over.src = render.src;
    over.alt = render.alt;
    range.setAttribute("aria-label", `From truth, left, to ${render.alt}, right: where they meet, in per cent`);
  };
  const move = () => slider.style.setProperty("--at", `${range.value}%`);
  select.addEventListener("change", show);
  range.addEventListener("input", move);
  show();
  move();
  original.before(slider);
  original.hidden = true;
  view.classList.add("compared");
}
