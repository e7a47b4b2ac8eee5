// Elements, texts and numbers. Texts of a run become text nodes; nothing here reads markup.
const SVG_TAGS = new Set("svg g path line circle text rect title".split(" "));
const absent = (value) => value === null || value === undefined || value === "";
const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  return fill(node, ...children);
}

// Gives an element children, lists of them and nothing (null, undefined, false) among them.
function fill(node, ...children) {
  node.replaceChildren(...children.flat(4).filter((child) => child !== false && !absent(child)));
  return node;
}

const button = (label, onclick, attributes = {}) => el("button", { type: "button", onclick, ...attributes }, label);

// A text with what a screen would hide written as in JSON: control characters, separators of lines and marks that turn
// the direction of writing (which a browser also takes minutes to lay out, if there are many), and halves of surrogate
// pairs.
const HIDDEN = new RegExp([
  /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/,
  /[\ud800-\udbff](?![\udc00-\udfff])/,
  /(?<![\ud800-\udbff])[\udc00-\udfff]/,
].map((part) => part.source).join("|"), "g");
const escaped = (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`;
const visible = (text) => String(text).replace(HIDDEN, escaped);

const number = (value, digits = 4) => (value === null || value === undefined || Number.isNaN(value) ? "–"
  : typeof value !== "number" ? String(value) : Number.isInteger(value) ? value.toLocaleString("en")
  : String(Number(value.toPrecision(digits))));
const seconds = (value) => (value < 0.9995 ? `${number(value * 1000, 3)} ms` : `${number(value, 3)} s`);
const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const signed = (value) => (value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${number(value, 3)}`);
const outcome = (row) => (row.stop === "unreadable" || row.failed ? "broken"
  : row.success ? "good" : row.reward > 0 ? "fair" : "poor");
const words = (name) => name.replaceAll("_", " ");
const badge = (text, kind = "", title = null) => el("span", { class: `badge ${kind}`, title }, visible(text));
const rewardBadge = (row) => badge(Number.isNaN(row.reward) ? "–" : number(row.reward, 3), `reward ${outcome(row)}`,
  "reward");

// A text that is folded if it is long, never cut: the button shows all of it.
const FOLD_LINES = 24, FOLD_LENGTH = 4000;
function longText(text, attributes = {}) {
  const shown = visible(textOf(text));
  const lines = shown.split("\n");
  const node = el("pre", attributes, shown);
  if (lines.length <= FOLD_LINES + 6 && shown.length <= FOLD_LENGTH * 1.5) return node;
  const short = lines.slice(0, FOLD_LINES).join("\n").slice(0, FOLD_LENGTH);
  node.textContent = `${short}\n…`;
  const label = `Show all ${number(lines.length)} lines, ${number(shown.length)} characters`;
  const more = button(label, () => {
    const open = more.getAttribute("aria-expanded") === "true";
    more.setAttribute("aria-expanded", String(!open));
    node.textContent = open ? `${short}\n…` : shown;
    more.textContent = open ? label : "Show less";
  }, { class: "more", "aria-expanded": "false" });
  return el("div", {}, node, more);
}

// JSON set out in lines: numbers keep all their digits, and lists of them stay in a line.
function prettyJson(text) {
  const exact = (name, value, context) => (
    typeof value === "number" && JSON.rawJSON ? JSON.rawJSON(context.source) : value);
  return JSON.stringify(readJson(text, exact), null, 2)
    .replace(/\[\n\s+([^[\]{}"]*?)\n\s*\]/g, (_, inside) => `[${inside.replace(/,\n\s+/g, ", ")}]`);
}
