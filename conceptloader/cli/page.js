"use strict";
// Without this the page is only longer: the box hides rows and windows that lack its text, heads of columns sort.
const box = document.querySelector("input"), said = document.querySelector("output");
const items = [...document.querySelectorAll(".rows tbody tr, article")].map((item) => [item, item.textContent.toLowerCase()]);
box.addEventListener("input", () => {
  const wanted = box.value.trim().toLowerCase();
  for (const [item, text] of items) item.hidden = !text.includes(wanted);
  said.value = wanted && `${items.filter(([item]) => !item.hidden).length} of ${items.length}`;
});

const { compare } = new Intl.Collator(undefined, { numeric: true });
const number = (text) => (text ? Number(text.replaceAll(",", "")) : NaN);
for (const head of document.querySelectorAll(".rows th")) {
  const button = document.createElement("button"), body = head.closest("table").tBodies[0];
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
    const text = (row) => row.cells[head.cellIndex].textContent;
    body.append(...[...body.rows].sort((a, b) => sign * (number(text(a)) - number(text(b)) || compare(text(a), text(b)))));
  });
}
