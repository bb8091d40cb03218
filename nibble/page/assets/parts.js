// Parts of pages: elements, numbers for people, cards and tables. Text becomes text nodes and attributes, never markup,
// so names may contain anything.
"use strict";

// The pages by name: functions from the data to the content.
const views = {};

// Control characters and halves of characters are shown as U+FFFD.
const clean = (text) => String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f]|\p{Cs}/gu, "\ufffd");

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== null && value !== "") node.setAttribute(key, clean(value));
  for (const child of children.flat(Infinity))
    if (child !== undefined && child !== null && child !== false && child !== "") node.append(child instanceof Node ? child : clean(child));
  return node;
}
const element = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const drawing = (name, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const part = (css, ...children) => element("div", { class: css }, ...children);
const span = (css, ...children) => element("span", { class: css }, ...children);

// JSON has null for numbers that do not exist.
const known = (value) => typeof value === "number" && Number.isFinite(value);

// Like toFixed(), but a number exactly between two others becomes the even one, as in C++ and in Python.
function places(value, decimals) {
  const exact = value.toFixed(decimals + 50), down = exact.slice(0, decimals ? -50 : -51);
  return /[02468]\.?50{49}$/.test(exact) ? down : value.toFixed(decimals);
}
function fixed(value, decimals) {
  if (known(value)) return places(value, decimals).replace(/^-(?=0\.?0*$)/, "");
  return value === Infinity ? "∞" : value === -Infinity ? "−∞" : "–";
}
// At most `decimals` decimals, without trailing zeros.
function short(value, decimals = 2) {
  const text = fixed(value, decimals);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
// `digits` significant digits, with an exponent below 1e-4 and from 10^digits.
function significant(value, digits = 4) {
  if (!known(value)) return fixed(value);
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e"), exponent = Number(power);
  if (exponent >= -4 && exponent < digits) return short(value, digits - 1 - exponent);
  return (mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa) + powerOf(exponent);
}
const powerOf = (exponent) => "e" + (exponent < 0 ? "-" : "+") + String(Math.abs(exponent)).padStart(2, "0");
function scientific(value) {
  const [mantissa, power] = value.toExponential(3).split("e");
  return mantissa + powerOf(Number(power));
}
const count = (value) => (known(value) ? Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",") : "–");
// Three significant digits with a unit; each unit is 1000 times the one before.
function scaled(value, units) {
  let unit = 0;
  for (; Math.abs(value) >= 999.5 && unit + 1 < units.length; ++unit) value /= 1000;
  const size = Math.abs(value);
  return places(value, unit === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2) + units[unit];
}
const bytes = (value) => scaled(value, [" B", " kB", " MB", " GB", " TB", " PB"]);
const large = (value) => scaled(value, ["", " k", " M", " B", " T"]);
function duration(seconds) {
  if (!known(seconds) || seconds < 0) return "–";
  if (seconds < 0.9995) return places(seconds * 1000, 0) + " ms";
  if (seconds < 59.95) return places(seconds, 1) + " s";
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}
function share(part, whole) {
  if (part === 0 || whole <= 0) return "0";
  const percent = (100 * part) / whole;
  if (percent < 0.0001) return "< 0.0001%";
  return places(percent, percent >= 9.995 ? 1 : percent >= 0.9995 ? 2 : percent >= 0.09995 ? 3 : 4) + "%";
}
const sum = (list) => list.reduce((total, value) => total + value, 0);
const mean = (list) => (list.length ? sum(list) / list.length : NaN);
const words = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// "1.23 GB", "3 min 12 s" with small units.
const figure = (text) =>
  text.split(" ").map((word, i) => (/^[\d∞–−?]|^→/.test(word) ? (i ? " " : "") + word : [i ? "\u202f" : "", element("small", {}, word)]));

const header = (kind, title, meta) =>
  element("header", {}, part("kicker", "nibble · " + kind), element("h1", {}, title),
    meta && part("meta", meta.filter(Boolean).map((text) => (text instanceof Node ? text : span("", text)))));
const card = (what, text, more, wide) =>
  part(wide ? "card wide" : "card", part("what", what), part("figure", typeof text === "string" ? figure(text) : text), part("more", more));
const note = (...text) => element("p", { class: "note" }, ...text);
const section = (title, ...content) => element("section", {}, element("h2", {}, title), ...content);
// The section may be divided between printed pages.
const longSection = (title, ...content) => element("section", { class: "long" }, element("h2", {}, title), ...content);
const list = (items) => element("ul", { class: "warnings" }, items.map((item) => element("li", {}, item)));
const entries = (pairs) => element("dl", {}, pairs.filter(Boolean).map(([what, value]) => [element("dt", {}, what), element("dd", {}, value)]));

// Cells of tables. `number`: is sorted by its value; infinite values last.
const cell = (text, css) => element("td", { class: css }, text);
const left = (...text) => element("td", { class: "l" }, ...text);
const number = (text, value) => element("td", { "data-v": known(value) ? String(value) : "1e9" }, text);
// Allows line breaks after dots.
const breakable = (name) => clean(name).split(".").map((piece, i) => (i ? [".", element("wbr"), piece] : piece));
const nameCell = (name, ...more) => element("td", { class: "name" }, breakable(name), ...more);
const row = (cells, css) => element("tr", { class: css }, cells.map((c) => (c instanceof Node ? c : cell(c))));
// Heads that start with '<' are left-aligned. `css`: "sortable", "filterable".
const table = (css, heads, rows) =>
  part(css.includes("filterable") ? "table scroll" : "table", element("table", { class: css },
    element("thead", {}, element("tr", {}, heads.map((h) => element("th", h[0] === "<" ? { class: "l" } : {}, h[0] === "<" ? h.slice(1) : h)))),
    element("tbody", {}, rows)));
