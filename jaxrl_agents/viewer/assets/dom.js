"use strict";
// Elements from data. Text is only ever set as text: nothing in this page parses markup from a run.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function readJson(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

// 1,234 · 0.742 · 7.6e-6, always with a true minus sign.
function formatNumber(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  let text;
  if (size !== 0 && size < 1e-3) text = size.toExponential(1).replace("-", "−");
  else if (size >= 1000) text = Math.round(size).toLocaleString("en-US");
  else if (size >= 100) text = size.toFixed(0);
  else if (size >= 10) text = size.toFixed(1);
  else text = size.toFixed(size >= 2 ? 2 : 3);
  return x < 0 && Number(text) !== 0 ? "−" + text : text;
}

function formatSigned(x) {
  return (x > 0 ? "+" : "") + formatNumber(x);
}

function formatDuration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + String(s % 60).padStart(2, "0") + " s";
  return Math.floor(s / 3600) + " h " + String(Math.floor((s % 3600) / 60)).padStart(2, "0") + " min";
}
