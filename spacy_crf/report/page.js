"use strict";
// Texts reach the page as textContent only: nothing in them is markup.
const PAGE = 25;
const make = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const percent = (share) => (share === null ? "" : ` (${share < 0.001 ? "under 0.1" : (100 * share).toFixed(1)} %)`);

const said = ([label, probability], before) => `${before} ${label}${percent(probability)}`;

const why = (rows) => {
  const head = make("tr", {}, ...["word", "for", "against"].map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map(([word, weight]) => {
    const amount = Math.abs(weight).toFixed(2);
    return make("tr", {}, make("th", { scope: "row" }, word),
      make("td", {}, weight > 0 ? amount : ""), make("td", {}, weight > 0 ? "" : amount));
  });
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  return make("details", {}, make("summary", {}, "why"), table);
};

const item = (error) => {
  const parts = error.parts.map(([text, role]) => (role ? make("mark", { class: role }, text) : text));
  const sayings = [];
  if (error.gold) sayings.push(said(error.gold, "annotated"));
  if (error.found) sayings.push(said(error.found, "found"));
  const verdict = make("p", {}, make("b", {}, error.kind), `: ${sayings.join(", ")} `, make("small", {}, error.origin));
  const node = make("li", {}, make("p", { class: "context" }, ...parts), verdict);
  if (error.why) node.append(why(error.why));
  return node;
};

const choice = (name, values) => {
  const select = make("select", {}, ...values.map(([value, text]) => make("option", { value }, text)));
  return [select, make("label", {}, name, select)];
};

const probability = (error) => (error.found && error.found[1] !== null ? error.found[1] : 1 - (error.gold?.[1] ?? 1));
const ORDERS = {
  sure: ["the surest first", (a, b) => probability(b) - probability(a)],
  unsure: ["the least sure first", (a, b) => probability(a) - probability(b)],
  text: ["as in the data", (a, b) => a.at - b.at],
};

for (const box of document.querySelectorAll(".errors")) {
  const errors = JSON.parse(box.querySelector("script").textContent);
  const kinds = [...new Set(errors.map((error) => error.kind))].map((kind) => [kind, kind]);
  const labels = [...new Set(errors.flatMap(({ gold, found }) => [gold?.[0], found?.[0]]))].filter(Boolean).sort();
  const [kind, kindLabel] = choice("kind", [["", "all"], ...kinds]);
  const [label, labelLabel] = choice("label", [["", "all"], ...labels.map((name) => [name, name])]);
  const [order, orderLabel] = choice("order", Object.entries(ORDERS).map(([key, [name]]) => [key, name]));
  const text = make("input", { type: "search" });
  const list = make("ol", { class: "list", "aria-label": `Mistakes of ${box.dataset.name}` });
  const status = make("span", { role: "status" });
  const [before, after] = ["previous", "next"].map((name) => make("button", { type: "button" }, name));
  let first = 0;

  const show = () => {
    const words = text.value.toLowerCase();
    const chosen = errors.filter((error) =>
      (!kind.value || error.kind === kind.value) &&
      (!label.value || error.gold?.[0] === label.value || error.found?.[0] === label.value) &&
      (!words || `${error.parts.map(([part]) => part).join("")} ${error.origin}`.toLowerCase().includes(words)));
    chosen.sort(ORDERS[order.value][1]);
    list.replaceChildren(...chosen.slice(first, first + PAGE).map(item));
    const last = Math.min(first + PAGE, chosen.length);
    status.textContent = chosen.length ? ` ${first + 1} to ${last} of ${chosen.length} ` : " none ";
    before.disabled = first === 0;
    after.disabled = last === chosen.length;
  };
  const turn = (by) => { first = Math.max(0, first + by); show(); };
  for (const control of [kind, label, order, text]) control.addEventListener("input", () => { first = 0; show(); });
  before.addEventListener("click", () => turn(-PAGE));
  after.addEventListener("click", () => turn(PAGE));
  box.append(make("div", { class: "filters" }, kindLabel, labelLabel, orderLabel, make("label", {}, "words", text)),
    list, make("div", { class: "pager" }, before, status, after));
  show();
}
