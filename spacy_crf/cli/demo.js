"use strict";
// Texts and labels reach the page as textContent, attributes and values only: nothing in them is markup.
const [ask, text, status, found] = ["ask", "text", "status", "found"].map((id) => document.getElementById(id));
const make = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const button = (name, act) => {
  const node = make("button", { type: "button" }, name);
  node.addEventListener("click", act);
  return node;
};
const COLOURS = 8; // of labels, in demo.css
const percent = (share) => (typeof share === "number" ? `${(100 * share).toFixed(1)} %` : "");
const get = async (path, question) => {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(path, question && { method: "POST", headers, body: JSON.stringify(question) });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error.message);
  return value;
};
const showingErrors = async (act) => {
  try { status.textContent = (await act()) ?? ""; } catch (error) { status.textContent = error.message; }
};
let saves = false;

// What a component finds in a text. Spans are [first token, token behind the last, label, probability].
const section = (text, { name, kind, labels, tokens, spans, best }, number) => {
  const context = make("p", { class: "context", tabindex: "-1" }), others = make("p"), panel = make("div", { class: "why" });
  const joined = (start, end) => tokens.slice(start, end).map((parts) => parts.join("")).join("");
  const words = ([start, end]) => joined(start, end - 1) + (tokens[end - 1] ?? [""])[0];
  const known = make("datalist", { id: `labels-${number}` }, ...labels.map((value) => make("option", { value })));
  const field = (title, value = "", list = {}) => {
    const input = make("input", { ...list, autocomplete: "off" });
    input.value = value;
    return [input, make("label", {}, title, input)];
  };
  let chosen = null, marked = null;

  const mark = (span) => {
    const label = [span[2], percent(span[3])].join(" ").trim();
    const number = labels.indexOf(span[2]), colour = `label-${(number < 0 ? labels.length : number) % COLOURS}`;
    const node = make("mark", { class: colour, role: "button", tabindex: "0", "data-label": label, "aria-label": `${words(span)}, ${label}`,
      "aria-pressed": String(span === chosen) }, words(span));
    node.addEventListener("click", () => choose(span));
    node.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(span);
    });
    return node;
  };
  const draw = () => {
    const focused = [...context.children, ...others.children].indexOf(document.activeElement);
    const nodes = [], overlapping = [];
    let at = 0;
    for (const span of spans.sort((a, b) => a[0] - b[0] || b[1] - a[1])) {
      if (span[0] < at) { overlapping.push(mark(span), " "); continue; }
      nodes.push(joined(at, span[0]), mark(span), (tokens[span[1] - 1] ?? ["", ""])[1]);
      at = span[1];
    }
    context.replaceChildren(...nodes, joined(at, tokens.length));
    others.replaceChildren(...(overlapping.length ? ["Overlapping: ", ...overlapping] : []));
    if (focused >= 0) [...context.children, ...others.children][focused]?.focus();
  };
  const change = (removed, added) => {
    const cut = (span) => removed.includes(span) || (kind !== "spans" && added.some((a) => span[0] < a[1] && a[0] < span[1]));
    spans = [...spans.filter((span) => !cut(span)), ...added];
    chosen = null;
    status.textContent = ""; // what it says was saved is no longer what is shown
    panel.replaceChildren();
    draw();
    context.focus();
  };

  const choose = async (span) => {
    chosen = span;
    draw();
    let reason;
    try {
      const { title, lines, rows } = await get("why", { component: name, text, span: span.slice(0, 3) });
      const head = ["log-odds", "word"].map((cell) => make("th", { scope: "col" }, cell));
      const body = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))));
      const table = make("table", {}, make("caption", {}, "The words that speak for it (+) and against it (-)"),
        make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
      reason = [make("h3", {}, title), ...lines.map((line) => make("p", {}, line)), table];
    } catch (error) { reason = [make("p", {}, error.message)]; }
    if (chosen !== span) return;
    panel.replaceChildren(...(saves ? [corrections(span)] : []), ...reason);
  };
  const corrections = (span) => {
    const [label, labelled] = field("label of the chosen mark", span[2], { list: known.id });
    const parts = [labelled, button("change", () => label.value && change([span], [[span[0], span[1], label.value]]))];
    if (kind !== "cats") parts.push(button("remove", () => change([span], [])));
    return make("div", { class: "filters" }, ...parts);
  };

  // Words to mark anew: those selected with the mouse, or typed
  const [typed, typedLabel] = field("words to mark");
  const [label, labelled] = field("as", labels[0], { list: known.id });
  context.addEventListener("mouseup", () => {
    const selection = getSelection();
    if (!selection.rangeCount || selection.isCollapsed) return;
    const range = selection.getRangeAt(0), before = document.createRange();
    if (!context.contains(range.commonAncestorContainer)) return;
    before.setStart(context, 0);
    before.setEnd(range.startContainer, range.startOffset);
    const begin = before.toString().length, end = begin + range.toString().length;
    let at = 0;
    const touched = tokens.flatMap(([word, space], n) => {
      const first = at;
      at += word.length + space.length;
      return word.trim() && first < end && begin < first + word.length ? [n] : [];
    });
    if (!touched.length) return;
    marked = [touched[0], touched.at(-1) + 1];
    typed.value = words(marked);
  });
  typed.addEventListener("input", () => { marked = null; });
  const place = () => {
    const wanted = typed.value.trim().split(/\s+/).join(" "), places = [];
    for (let start = 0; wanted && start < tokens.length; start++)
      for (let end = start + 1; end <= tokens.length && words([start, end]).length <= typed.value.length + 20; end++)
        if (words([start, end]).split(/\s+/).join(" ") === wanted) places.push([start, end]);
    return places.find(([start, end]) => !spans.some((span) => span[0] < end && start < span[1])) ?? places[0];
  };
  const add = () => showingErrors(() => {
    const [start, end] = marked ?? place() ?? [0, 0];
    if (start === end || !label.value) return "These words are not in the text, or have no label.";
    const ends = kind === "tags" ? Array.from({ length: end - start }, (_, n) => start + n + 1) : [end];
    change([], ends.map((last) => [kind === "tags" ? last - 1 : start, last, label.value]));
    return `Marked as ${label.value}: ${words([start, end])}`;
  });

  const spelt = (span) => (kind === "cats" ? span[2] : kind === "segments" ? words(span) : `${words(span)} (${span[2]})`);
  const parted = kind === "segments" ? " | " : "; ";
  const items = best.map(([share, of]) => {
    const take = saves ? [" ", button("use this", () => change(spans, of.map((span) => [...span])))] : [];
    return make("li", {}, `${percent(share)}: ${of.map(spelt).join(parted) || "nothing"}`, ...take);
  });
  const save = () => showingErrors(async () => {
    const given = spans.map((span) => span.slice(0, 3));
    const { saved, is_new } = await get("save", { component: name, text, spans: given });
    return is_new ? `Saved to ${saved}` : `Saved before, in ${saved}`;
  });
  draw();
  const tools = saves ? [button("save", save)] : [];
  const hints = ["Choose a mark to see why."];
  if (saves && kind !== "cats") hints.push("Select words, or type them below, to mark them.");
  const marking = saves && kind !== "cats" ? [make("div", { class: "filters" }, typedLabel, labelled, button("mark", add))] : [];
  return make("section", { "aria-labelledby": `name-${number}` }, make("h2", { id: `name-${number}` }, name), known, context,
    make("p", { class: "low hint" }, spans.length ? hints.join(" ") : `Nothing is found. ${hints.slice(1).join(" ")}`), others, panel, ...marking, ...tools, make("h3", {}, "Most probable labellings"), make("ol", {}, ...items));
};

const find = () => showingErrors(async () => {
  if (!text.value.trim()) return "Type a text first.";
  status.textContent = "…";
  const asked = text.value, { components } = await get("find", { text: asked });
  found.replaceChildren(...components.map((component, number) => section(asked, component, number)));
});
ask.addEventListener("submit", (event) => { event.preventDefault(); find(); });
text.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.ctrlKey) ask.requestSubmit(); });
showingErrors(async () => {
  const about = await get("about");
  saves = about.saves;
  document.getElementById("title").textContent = document.title = `Try ${about.model}`;
});
