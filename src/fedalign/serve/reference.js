"use strict";
const at = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function rows(head, lines) {
  const table = element("table");
  for (const [tag, cells] of [["th", head], ...lines.map((line) => ["td", line])]) {
    const line = element("tr");
    for (const cell of cells) line.append(element(tag, cell));
    table.append(line);
  }
  const scroll = element("div", undefined, "scroll");
  scroll.append(table);
  return scroll;
}

function kind(schema) {
  const one = (schema.anyOf || [schema]).find((part) => part.type !== "null");
  const least = one.minimum ?? "", most = one.maximum ?? "";
  return `${one.type}${least !== "" || most !== "" ? `, ${least} to ${most}` : ""}`;
}

function route(path, method, about) {
  const made = element("section");
  const head = element("h2");
  head.append(element("span", method.toUpperCase(), "method"), ` ${path}`);
  made.append(head, element("p", about.summary));
  if (about.parameters) {
    const lines = about.parameters.map((one) => [one.name, kind(one.schema), String(one.schema.default ?? ""),
      one.description || one.schema.description || ""]);
    made.append(element("h3", "Options in the address"), rows(["name", "type", "default", ""], lines));
  }
  if (about.requestBody) {
    const content = about.requestBody.content;
    made.append(element("h3", "Body"), element("p", Object.keys(content).join(", ")));
    const json = content["application/json"];
    made.append(element("pre", JSON.stringify(json.example, null, 1)), element("p", json.schema.properties.rows.description));
  }
  const answers = Object.entries(about.responses).map(([status, one]) => [status, one.description]);
  made.append(element("h3", "Answers"), rows(["status", ""], answers));
  const good = about.responses["200"].content?.["application/json"]?.schema;
  if (good && good.properties) made.append(element("pre", JSON.stringify(good, null, 1)));
  return made;
}

async function start() {
  const found = await (await fetch("/openapi.json")).json();
  at("about").textContent = `${found.info.title} ${found.info.version}. ${found.info.description}`;
  at("examples").textContent = [
    `curl -F file=@${found.paths["/predict"].post["x-file"]} ${location.origin}/predict`,
    `curl -H 'Content-Type: application/json' -d '{"rows": [ROW]}' '${location.origin}/predict?top=3&explain=5'`,
    `curl ${location.origin}/model`,
  ].join("\n");
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const [method, about] of Object.entries(methods)) at("routes").append(route(path, method, about));
  }
}
start();
