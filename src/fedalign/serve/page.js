"use strict";
const at = (id) => document.getElementById(id);
const SHOWN = 200; // predictions drawn as a table
let about = null;
let token = "";

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text; // never as HTML: names come from files
  if (className) made.className = className;
  return made;
}

function say(text) {
  at("message").textContent = text;
  at("message").hidden = !text;
}

async function ask(address, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let answer, found;
  try {
    answer = await fetch(address, { ...options, headers });
    found = await answer.json();
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  if (answer.status === 401) {
    at("token-form").hidden = false;
    at("token").focus();
  }
  if (!answer.ok) throw new Error(found.error ? found.error.message : `The server answers with ${answer.status}.`);
  return found;
}

// --- what the model reads ------------------------------------------------------------------------------------------

const columns = () => [about.reads.features, about.reads.series, about.reads.text].flat()
  .filter((name) => name && name !== "all");

async function start() {
  try {
    about = await ask("/model");
  } catch (error) {
    at("about").textContent = "";
    return say(error.message);
  }
  at("token-form").hidden = true;
  say("");
  const classes = about.label_names;
  const listed = classes.slice(0, 12).join(", ") + (classes.length > 12 ? ` and ${classes.length - 12} more` : "");
  const choice = about.task === "single" ? "One of" : "Any of";
  at("about").textContent = `${choice} ${classes.length} classes: ${listed}.`;
  const kinds = {
    text: ["One text", "Paste a text"],
    features: ["One row per line, numbers in this order, or with a header", columns().join(", ")],
    series: ["One recording: one step per line", columns().join(", ")],
  };
  const [label, hint] = kinds[about.kind] || ["Rows as JSON", "[...]"];
  at("row-label").textContent = label;
  at("row").placeholder = hint;
  if (about.kind === "images") readImages();
}

function readImages() {
  for (const id of ["row-label", "row", "send"]) at(id).hidden = true;
  at("choose").textContent = "Choose an image";
  at("choose").className = "";
  at("file").accept = ".png,.jpg,.jpeg,.tif,.tiff,.webp";
  at("files").textContent = "or drop an image anywhere: PNG, JPEG, TIFF or WebP";
}

// --- asking ----------------------------------------------------------------------------------------------------------

const json = (rows) => ({ headers: { "Content-Type": "application/json" }, body: JSON.stringify({ rows }) });
const cells = (line) => line.split(/[,;\t]/).map((cell) => (cell.trim() === "" ? null : Number(cell)));

function pasted(text) {
  if (about.kind === "text") return json([text]);
  if (/^\s*[[{]/.test(text)) {
    let rows;
    try {
      rows = JSON.parse(text);
    } catch {
      throw new Error("This begins like JSON but is not; check brackets and quotes.");
    }
    return json(Array.isArray(rows) ? rows : [rows]);
  }
  const lines = text.split("\n").filter((line) => line.trim());
  const named = columns().some((name) => lines[0].includes(name));
  if (named) return { headers: { "Content-Type": "text/csv" }, body: lines.join("\n") };
  const rows = lines.map(cells);
  if (rows.flat().some(Number.isNaN)) throw new Error("Write numbers separated by commas, or a header line first.");
  return json(about.kind === "series" ? [rows] : rows);
}

async function predict(make, few) {
  say("");
  at("results").replaceChildren();
  at("send").disabled = true;
  try {
    if (!about) await start();
    if (!about) return;
    const reasons = few && about.explains ? "&explain=8" : "";
    const top = Math.min(5, about.label_names.length);
    const found = await ask(`/predict?top=${top}${reasons}`, { method: "POST", ...make() });
    show(found);
  } catch (error) {
    say(error.message);
  } finally {
    at("send").disabled = false;
  }
}

function send(file) {
  const form = new FormData();
  form.append("file", file);
  predict(() => ({ body: form }), false);
}

// --- showing ---------------------------------------------------------------------------------------------------------

const percent = (p) => `${(100 * p).toFixed(1)} %`;

function reasons(listed) {
  const list = element("ul", undefined, "parts");
  for (const { part, change } of listed.because) {
    const sign = change > 0 ? "+" : "−";
    const item = element("li", `${part} ${sign}${Math.abs(change).toFixed(2)}`, change > 0 ? "for" : "against");
    list.append(item);
  }
  return list;
}

function card(prediction) {
  const made = element("article", undefined, "answer");
  made.append(element("div", prediction.labels.join(", ") || "none of the classes", "names"));
  for (const listed of prediction.top) {
    const line = element("div", undefined, "class");
    const bar = element("div", undefined, "bar");
    const filled = element("div");
    filled.style.width = percent(listed.probability).replace(" ", "");
    bar.append(filled);
    line.append(element("div", listed.label), bar, element("div", percent(listed.probability), "number"));
    made.append(line);
    if (listed.because && listed.because.length) made.append(reasons(listed));
  }
  if (about.task === "multi") {
    made.append(element("p", "The first line names the classes above their own thresholds.", "hint"));
  }
  if (prediction.top.some((listed) => listed.because)) {
    made.append(element("p", "Below each class: what speaks for it (+) or against it (−), as the change of its " +
      "log-odds when it is left out.", "hint"));
  }
  return made;
}

function table(predictions) {
  const made = element("table");
  const head = element("tr");
  for (const name of ["row", "labels", "likeliest", ""]) head.append(element("th", name));
  made.append(head);
  for (const one of predictions.slice(0, SHOWN)) {
    const line = element("tr");
    line.append(element("td", one.row), element("td", one.labels.join(", ") || "none"));
    line.append(element("td", one.top[0].label), element("td", percent(one.top[0].probability), "number"));
    made.append(line);
  }
  const scroll = element("div", undefined, "scroll");
  scroll.append(made);
  return scroll;
}

function show({ predictions, skipped }) {
  const place = at("results");
  if (predictions.length <= 5) place.append(...predictions.map(card));
  else place.append(element("h2", `${predictions.length} rows`), table(predictions));
  if (predictions.length > SHOWN) place.append(element("p", `The first ${SHOWN} are shown.`, "hint"));
  if (skipped.length) place.append(element("p", `Rows without input: ${skipped.slice(0, 20).join(", ")}.`, "hint"));
}

// --- events ----------------------------------------------------------------------------------------------------------

at("row-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("row").value;
  if (!text.trim()) return say("Paste a row first, or drop a file.");
  predict(() => pasted(text), true);
});
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = at("token").value.trim();
  start();
});
at("choose").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", (event) => {
  if (event.target.files.length) send(event.target.files[0]);
  event.target.value = "";
});
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", name === "dragover");
    if (name === "drop" && event.dataTransfer.files.length) send(event.dataTransfer.files[0]);
  });
}
start();
