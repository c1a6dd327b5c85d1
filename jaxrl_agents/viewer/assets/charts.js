"use strict";
// Small multiples with one linked crosshair per phase. A panel is redrawn at the width it is given, so
// that lines and letters stay crisp.

const HEIGHT = 132;
const MARGIN = { top: 8, right: 10, bottom: 20, left: 42 };

function niceTicks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

function tickLabel(x) {
  const size = Math.abs(x);
  if (size >= 1e6) return (x / 1e6).toLocaleString("en-US") + "M";
  if (size >= 10000) return (x / 1000).toLocaleString("en-US") + "k";
  if (size !== 0 && size < 1e-3) return x.toExponential(0).replaceAll("-", "−");
  return String(Number(x.toPrecision(6))).replace("-", "−");
}

// The range of a panel: its fixed ends where it has them, else those of the data with some room.
function valueRange(panel, columns) {
  const values = panel.keys.flatMap((key) => columns[key]).filter((x) => x !== null);
  if (panel.scale === "log") {
    const positive = values.filter((x) => x > 0);
    if (!positive.length) return [1e-9, 1];
    const low = 10 ** Math.floor(Math.log10(Math.min(...positive)));
    const high = 10 ** Math.ceil(Math.log10(Math.max(...positive)));
    return low === high ? [low / 10, high] : [low, high];
  }
  let low = Math.min(...values), high = Math.max(...values);
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  const fixedLow = panel.low !== null && panel.low <= low, fixedHigh = panel.high !== null && panel.high >= high;
  low = fixedLow ? panel.low : low - room;
  high = fixedHigh ? panel.high : high + room;
  const ticks = niceTicks(low, high, 3), step = ticks.length > 1 ? ticks[1] - ticks[0] : high - low;
  // The ends of the data within 0.4 steps of a tick are moved to it, so that it is drawn.
  const outer = (end, round) => {
    const tick = round(end / step) * step;
    return Math.abs(tick - end) < step * 0.4 ? tick : end;
  };
  return [fixedLow ? low : outer(low, Math.floor), fixedHigh ? high : outer(high, Math.ceil)];
}

function logTicks(low, high) {
  const ticks = [];
  const first = Math.round(Math.log10(low)), last = Math.round(Math.log10(high));
  const stride = Math.max(1, Math.ceil((last - first) / 4));
  for (let e = first; e <= last; e += stride) ticks.push(10 ** e);
  return ticks;
}

// A centred moving average over about a fifteenth of the run; gaps stay gaps.
function smooth(values) {
  const half = Math.floor(values.length / 30);
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((x) => x !== null);
    return near.reduce((a, b) => a + b, 0) / near.length;
  });
}

function linePath(values, x, y) {
  let path = "", pen = false;
  values.forEach((value, i) => {
    const usable = value !== null && Number.isFinite(y(value));
    if (usable) path += (pen ? "L" : "M") + x(i).toFixed(1) + " " + y(value).toFixed(1);
    pen = usable;
  });
  return path;
}

class Panel {
  constructor(panel, phase, group) {
    Object.assign(this, { panel, phase, group });
    this.readings = panel.keys.map(() => el("b", {}));
    const many = panel.keys.length > 1;
    const legend = panel.keys.map((key, i) =>
      el("span", { class: "key" }, many && el("i", { class: "s" + (i % 6) }), many && panel.labels[i] + " ",
        this.readings[i]));
    this.plot = el("div", {
      class: "plot", tabindex: 0, role: "img",
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event),
      onpointerleave: () => group.show(null),
      onkeydown: (event) => this.key(event), onblur: () => group.show(null),
    });
    this.plot.setAttribute("aria-label", panel.title + ": " + panel.keys.map((key, i) => {
      const known = phase.columns[key].filter((x) => x !== null);
      return panel.labels[i] + " from " + formatNumber(known[0]) + " to " + formatNumber(known.at(-1));
    }).join("; "));
    this.root = el("figure", { class: "panel" },
      el("figcaption", {}, el("strong", {}, panel.title), panel.note && el("span", { class: "note" }, panel.note)),
      el("div", { class: "legend" + (many ? "" : " single") }, legend), this.plot);
    this.read(null);
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const { panel, phase } = this;
    const [low, high] = valueRange(panel, phase.columns);
    const last = Math.max(1, phase.steps.length - 1);
    const scale = panel.scale === "log" ? Math.log10 : (v) => v;
    const inner = width - MARGIN.left - MARGIN.right, tall = HEIGHT - MARGIN.top - MARGIN.bottom;
    this.x = (i) => MARGIN.left + (phase.steps.length === 1 ? inner / 2 : (i / last) * inner);
    this.y = (v) => MARGIN.top + (1 - (scale(v) - scale(low)) / (scale(high) - scale(low))) * tall;
    const ticks = panel.scale === "log" ? logTicks(low, high) : niceTicks(low, high, 3);
    const root = svg("svg", { width, height: HEIGHT, "aria-hidden": "true" });
    for (const tick of ticks) {
      const y = this.y(tick);
      root.append(svg("line", { class: "gridline", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        svg("text", { class: "tick", x: MARGIN.left - 7, y: y + 3.5, "text-anchor": "end" }, tickLabel(tick)));
    }
    const ends = phase.steps.length === 1 ? [[0, "middle"]] : [[0, "start"], [last, "end"]];
    for (const [i, anchor] of ends) {
      root.append(svg("text", { class: "tick", x: this.x(i), y: HEIGHT - 5, "text-anchor": anchor },
        (i === 0 ? "step " : "") + phase.steps[i]));
    }
    panel.keys.forEach((key, i) => this.drawSeries(root, phase.columns[key], "s" + (i % 6)));
    this.cursor = svg("g", { class: "cursor", visibility: "hidden" },
      svg("line", { y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      svg("rect", { y: HEIGHT - MARGIN.bottom + 2, height: 16 }),
      svg("text", { y: HEIGHT - 5, "text-anchor": "middle" }),
      panel.keys.map((_, i) => svg("circle", { r: 3.5, class: "s" + (i % 6) })));
    root.append(this.cursor);
    this.plot.replaceChildren(root);
  }

  drawSeries(root, values, name) {
    const known = values.map((value, i) => [i, value]).filter(([, v]) => v !== null && Number.isFinite(this.y(v)));
    if (known.length * 2 < values.length) { // few and far between, such as evaluations: joined over the gaps
      const path = known.map(([i, v], n) => (n ? "L" : "M") + this.x(i).toFixed(1) + " " + this.y(v).toFixed(1));
      root.append(svg("path", { class: "line " + name, d: path.join("") }), ...known.map(([i, v]) =>
        svg("circle", { class: "point " + name, cx: this.x(i), cy: this.y(v), r: 2.6 })));
      return;
    }
    const long = values.length >= 30;
    root.append(svg("path", { class: "line " + name + (long ? " raw" : ""), d: linePath(values, this.x, this.y) }));
    if (long) root.append(svg("path", { class: "line " + name, d: linePath(smooth(values), this.x, this.y) }));
    else values.forEach((value, i) => value !== null && Number.isFinite(this.y(value)) && root.append(
      svg("circle", { class: "point " + name, cx: this.x(i), cy: this.y(value), r: 2.2 })));
  }

  point(event) {
    if (!this.x) return;
    const offset = event.clientX - this.plot.getBoundingClientRect().left;
    const share = (offset - MARGIN.left) / (this.plot.clientWidth - MARGIN.left - MARGIN.right);
    const last = this.phase.steps.length - 1;
    this.group.show(Math.min(last, Math.max(0, Math.round(share * last))));
  }

  key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const last = this.phase.steps.length - 1;
    const from = this.group.index === null ? (move > 0 ? -1 : last + 1) : this.group.index;
    this.group.show(Math.min(last, Math.max(0, from + move)));
  }

  read(index) {
    this.panel.keys.forEach((key, i) => {
      const column = this.phase.columns[key];
      this.readings[i].textContent =
        formatNumber(index === null ? column.filter((x) => x !== null).at(-1) : column[index]);
    });
  }

  show(index) {
    this.read(index);
    if (!this.cursor) return;
    this.cursor.setAttribute("visibility", index === null ? "hidden" : "visible");
    if (index === null) return;
    const [line, box, text, ...dots] = this.cursor.children;
    const x = this.x(index), elapsed = this.phase.wall_s[index];
    line.setAttribute("x1", x); line.setAttribute("x2", x);
    text.textContent = "step " + this.phase.steps[index] + (elapsed === null ? "" : " · " + formatDuration(elapsed));
    const half = text.textContent.length * 3 + 6;
    const centre = Math.min(this.plot.clientWidth - half, Math.max(half, x));
    text.setAttribute("x", centre);
    box.setAttribute("x", centre - half); box.setAttribute("width", 2 * half);
    dots.forEach((dot, i) => {
      const value = this.phase.columns[this.panel.keys[i]][index];
      const y = value === null ? NaN : this.y(value);
      dot.setAttribute("visibility", Number.isFinite(y) ? "inherit" : "hidden");
      if (Number.isFinite(y)) { dot.setAttribute("cx", x); dot.setAttribute("cy", y); }
    });
  }
}

function chartPhase(phase) {
  const group = { index: null, panels: [] };
  group.show = (index) => { group.index = index; for (const panel of group.panels) panel.show(index); };
  const make = (panel) => { const made = new Panel(panel, phase, group); group.panels.push(made); return made.root; };
  const grid = el("div", { class: "grid" }, phase.panels.map(make));
  const section = el("section", { class: "phase" },
    el("h3", {}, phase.title, el("span", {}, phase.count + (phase.count === 1 ? " step" : " steps"))), grid);
  if (phase.others.length) {
    section.append(el("details", { class: "more", ontoggle: () => group.panels.forEach((p) => p.draw()) },
      el("summary", {}, phase.others.length + " more recorded scalars"), el("div", { class: "grid" }, phase.others.map(make))));
  }
  new ResizeObserver(() => group.panels.forEach((panel) => panel.draw())).observe(grid);
  return section;
}

(function () {
  const place = document.getElementById("charts");
  if (place) place.append(...readJson("curves-json").map(chartPhase));
})();
