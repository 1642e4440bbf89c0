"use strict";
(() => {
  const value = (cell) => {
    const given = cell.dataset.value;
    const number = Number(given);
    return given !== undefined && given !== "" && !Number.isNaN(number) ? number : cell.textContent.trim();
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });

  const sort = (table, column) => {
    const heads = table.tHead.rows[0].cells;
    const now = heads[column].getAttribute("aria-sort");
    const numeric = heads[column].classList.contains("number");
    const way = now === "descending" ? "ascending" : now === "ascending" ? "descending" : numeric ? "descending" : "ascending";
    const sign = way === "ascending" ? 1 : -1;
    const rows = Array.from(table.tBodies[0].rows);
    rows.sort((a, b) => sign * compare(value(a.cells[column]), value(b.cells[column])));
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", way);
    table.tBodies[0].append(...rows);
  };

  // no cell may start like a formula, so that a spreadsheet reads names as text
  const safe = (text) => (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text.replace(/[,±].*/, ""))) ? "'" + text : text);
  const csv = (table) =>
    Array.from(table.rows, (row) =>
      Array.from(row.cells, (cell) => '"' + safe(cell.textContent.trim().replace(/^● /, "")).replaceAll('"', '""') + '"').join(",")
    ).join("\n");

  const copied = (button, text) => {
    const fallback = () => {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    };
    const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy as CSV"; }, 1500); };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => { fallback(); done(); });
    else { fallback(); done(); }
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, i) => head.querySelector("button").addEventListener("click", () => sort(table, i)));
    const button = table.closest(".table").querySelector(".copy");
    button.addEventListener("click", () => { button.dataset.copied = csv(table); copied(button, button.dataset.copied); });
  }

  const theme = document.getElementById("theme");
  const order = ["auto", "light", "dark"];
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const next = order[(order.indexOf(document.documentElement.dataset.theme || "auto") + 1) % 3];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    theme.textContent = "Theme: " + next;
  });

  addEventListener("beforeprint", () => document.querySelectorAll("details.method").forEach((one) => { one.open = true; }));
})();
