// What is typed is parsed in the page, and shown as textContent and attributes only: nothing in texts or labels is markup.
const [text, status, found] = ["text", "status", "found"].map((id) => document.getElementById(id));
const COLOURS = 8; // of labels, in demo.css
const MOST_CATS = 20; // labels of a text that are listed
const PAUSE_OF_STATUS = 700; // before a screen reader says what was found
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const counted = (n, noun) => `${n} ${n === 1 ? noun : noun.replace(/y$/, "ie") + "s"}`;

const make = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

// The colour of each label, in the order in which labels are met
const colours = new Map();
const colour = (label) => {
  if (!colours.has(label)) colours.set(label, `label-${colours.size % COLOURS}`);
  return colours.get(label);
};

const section = (title, ...children) => {
  const id = `part-${title.toLowerCase().replace(/\W+/g, "-")}`;
  return make("section", { "aria-labelledby": id }, make("h2", { id }, title), ...children);
};

const table = (name, heads, rows) => {
  // The last column has numbers, the others texts
  const kindOf = (column) => ({ class: column === heads.length - 1 ? "number" : "text" });
  const head = heads.map((title, column) => make("th", { scope: "col", ...kindOf(column) }, title));
  const body = rows.map(([first, ...others]) => {
    const cells = others.map((cell, n) => make("td", kindOf(n + 1), cell));
    return make("tr", {}, make("th", { scope: "row" }, first), ...cells);
  });
  const whole = make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("div", { class: "wide", role: "region", "aria-label": `Table: ${name}`, tabindex: "0" }, whole);
};

// The text with a mark on each span; of overlapping spans on the first and longest
const marked = (whole, spans) => {
  const context = make("p", { class: "context" });
  let behind = 0;
  const inOrder = [...spans].sort((a, b) => a.start - b.start || b.end - a.end);
  for (const { start, end, label, prob } of inOrder) {
    if (start < behind) continue;
    const shown = prob === undefined ? label : `${label} ${percent(prob)}`;
    context.append(whole.slice(behind, start), make("mark", { class: colour(label), "data-label": shown }, whole.slice(start, end)));
    behind = end;
  }
  context.append(whole.slice(behind));
  return context;
};

// Spans as a table of fields: those of one label together, in the order in which labels appear
const fields = (name, spans) => {
  const labels = [...new Set(spans.map(({ label }) => label))];
  const inOrder = labels.flatMap((label) => spans.filter((span) => span.label === label));
  return table(name, ["label", "text", "probability"], inOrder.map(({ label, text, prob }) => [label, text, percent(prob)]));
};

// Labels of a text, the most probable first: objects order those that are numbers in another way
const inOrder = (cats) => Object.entries(cats).sort((a, b) => b[1] - a[1]);

// The sections of an answer, without those of which nothing was found
const sections = (answer) => {
  const parts = [];
  for (const [name, spans] of [["Entities", answer.entities], ...Object.entries(answer.spans)]) {
    if (spans.length) parts.push(section(name, marked(answer.text, spans), fields(name, spans)));
  }
  const cats = inOrder(answer.cats).slice(0, MOST_CATS);
  const name = "Labels of the text";
  const rows = cats.map(([label, prob]) => [label, percent(prob)]);
  if (rows.length) parts.push(section(name, table(name, ["label", "probability"], rows)));
  const attributes = Object.keys(answer.tokens[0] ?? {}).filter((key) => !["start", "end", "text"].includes(key));
  for (const attribute of attributes) {
    const tagged = answer.tokens.map((token) => ({ ...token, label: token[attribute] }));
    parts.push(section(`Words: ${attribute}`, marked(answer.text, tagged.filter(({ label, text }) => label && text.trim()))));
  }
  if (answer.sentences.length) {
    const items = answer.sentences.map(({ start, end }) => make("li", {}, answer.text.slice(start, end).trim()));
    parts.push(section("Sentences", make("ol", { class: "sentences" }, ...items)));
  }
  const about = { class: "json", tabindex: "0", role: "region", "aria-label": "JSON" };
  const json = make("pre", about, JSON.stringify(answer, null, 1));
  parts.push(make("details", {}, make("summary", {}, "The answer as JSON"), json));
  return parts;
};

const summary = ({ tokens, entities, spans, sentences, cats }) => {
  const nSpans = Object.values(spans).reduce((n, some) => n + some.length, entities.length);
  const parts = nSpans ? [counted(nSpans, "entity")] : [];
  if (sentences.length) parts.push(counted(sentences.length, "sentence"));
  const [best] = inOrder(cats);
  if (best) parts.push(`${best[0]} ${percent(best[1])}`);
  return parts.join(", ") || (Object.keys(tokens[0]).length > 3 ? counted(tokens.length, "word") : "Nothing is found.");
};

let parse = null;
let timer = 0;
let pause = 0; // milliseconds without a key before a text is parsed
let timerOfStatus = 0;
const say = (message, delay = 0) => {
  clearTimeout(timerOfStatus);
  timerOfStatus = setTimeout(() => { status.textContent = message; }, delay);
};
const show = () => {
  if (!parse) return;
  try {
    const isOpen = found.querySelector("details")?.open ?? false;
    const begin = performance.now();
    const answer = text.value.trim() ? parse(text.value, { utf16: true }) : null;
    found.replaceChildren(...(answer ? sections(answer) : []));
    const details = found.querySelector("details");
    if (details) details.open = isOpen;
    pause = 2 * (performance.now() - begin); // long texts wait for the end of a word
    say(answer ? summary(answer) : "", PAUSE_OF_STATUS);
  } catch (error) {
    found.replaceChildren();
    say(error.message);
  }
};
text.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(show, pause);
});

const start = async () => {
  const packed = atob(document.getElementById("model").textContent.trim());
  parse = await load(Uint8Array.from(packed, (char) => char.charCodeAt(0)));
  say("");
  show();
};
start().catch((error) => say(`The model can't be read: ${error.message}`));
