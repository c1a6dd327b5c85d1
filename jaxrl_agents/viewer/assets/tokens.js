"use strict";
// The per-token view: every id of a segment as the learner gets it, with what was recorded for it.

const TOKEN_MODES = [["logprob", "surprise"], ["advantage", "advantage"], ["version", "weight version"]];
const VERSION_HUES = 6;

// Expands runs: [{ text, id, sampled, logprob, version }], one per token of the segment.
function expandSegment(segment, episodes) {
  const sampled = [];
  segment.mask.forEach((length, i) => { for (let k = 0; k < length; k++) sampled.push(i % 2 === 1); });
  const versions = segment.versions.flatMap(([version, length]) => Array(length).fill(version));
  let next = 0;
  return segment.tokens.map((place, i) => {
    const token = { text: episodes.texts[place], id: episodes.ids[place], sampled: sampled[i] };
    if (token.sampled) {
      token.logprob = segment.logprobs[next];
      token.version = versions[next];
      next += 1;
    }
    return token;
  });
}

function tokenColour(token, mode, advantage, versions) {
  if (!token.sampled) return null;
  if (mode === "logprob") {
    const share = token.logprob === null ? 1 : Math.min(1, -token.logprob / 5);
    return "color-mix(in srgb, var(--miss) " + (6 + 64 * share).toFixed(0) + "%, transparent)";
  }
  if (mode === "advantage") {
    if (advantage === undefined) return "var(--panel)";
    const share = Math.min(1, Math.abs(advantage));
    return "color-mix(in srgb, var(" + (advantage < 0 ? "--miss" : "--accent") + ") " +
      (8 + 52 * share).toFixed(0) + "%, transparent)";
  }
  const hue = versions.indexOf(token.version) % VERSION_HUES;
  return "color-mix(in srgb, var(--s" + hue + ") 32%, transparent)";
}

function tokenDetails(token, advantage) {
  const shown = JSON.stringify(token.text) + " · id " + token.id;
  if (!token.sampled) return shown + " · not sampled: in the context, not in the loss";
  const p = token.logprob === null ? "not finite" :
    formatNumber(token.logprob) + " (p " + formatNumber(Math.exp(token.logprob)) + ")";
  return shown + " · sampled · log p " + p +
    (advantage === undefined ? "" : " · advantage " + formatSigned(advantage)) +
    " · version " + token.version;
}

function tokenLegend(mode, advantage, versions) {
  if (mode === "logprob") {
    return el("span", {}, "certain ", el("i", { class: "ramp" }), " surprising (log p ≤ −5); text without colour was not sampled");
  }
  if (mode === "advantage") {
    return el("span", {}, advantage === undefined ? "no advantage was recorded for this episode" :
      "every sampled token of the episode carries " + formatSigned(advantage));
  }
  return el("span", {}, "sampled by weights of version ", versions.map((version, i) => [el("i", {
    class: "chip", style: "background:color-mix(in srgb, var(--s" + (i % VERSION_HUES) + ") 32%, transparent)" }), version, " "]));
}

// The panel of one rollout: its segments as tabs, one colour mode at a time, details of a chosen token.
function tokenPanel(rollout, episodes) {
  const state = { segment: 0, mode: "logprob", chosen: null };
  const root = el("div", { class: "tokens" });

  function draw() {
    const tokens = expandSegment(rollout.segments[state.segment], episodes);
    const versions = [...new Set(rollout.segments.flatMap((s) => s.versions.map((run) => run[0])))];
    const advantage = rollout.metrics.advantage;
    const details = el("p", { class: "details", "aria-live": "polite" }, "Point at a token, or move with the arrow keys.");
    const spans = tokens.map((token, i) => {
      const colour = tokenColour(token, state.mode, advantage, versions);
      const text = token.text.replace(/\n/g, "↵\n");
      return el("span", { class: token.sampled ? "t on" : "t", "data-i": i, style: colour && "background:" + colour }, text);
    });
    function choose(i) {
      if (state.chosen !== null && spans[state.chosen]) spans[state.chosen].classList.remove("chosen");
      state.chosen = i;
      spans[i].classList.add("chosen");
      details.textContent = tokenDetails(tokens[i], advantage);
    }
    const at = (event) => {
      const span = event.target.closest(".t");
      if (span) choose(Number(span.dataset.i));
    };
    const count = tokens.filter((token) => token.sampled).length;
    root.replaceChildren(
      el("div", { class: "bar" },
        choices("Segment", rollout.segments.map((_, i) => [i, String(i + 1)]), state.segment,
          (i) => { state.segment = i; state.chosen = null; draw(); }),
        choices("Colour", TOKEN_MODES, state.mode, (mode) => { state.mode = mode; draw(); })),
      el("p", { class: "fine" }, tokens.length.toLocaleString("en-US") + " tokens, " + count.toLocaleString("en-US") +
        " of them sampled and trained. ", tokenLegend(state.mode, advantage, versions)),
      el("div", { class: "stream", tabindex: 0, "aria-label": "Tokens of the segment", onpointerover: at, onclick: at,
        onkeydown: (event) => {
          const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (!move) return;
          event.preventDefault();
          choose(Math.min(tokens.length - 1, Math.max(0, (state.chosen ?? -move) + move)));
          spans[state.chosen].scrollIntoView({ block: "nearest" });
        } }, spans),
      details);
    if (state.chosen !== null) choose(state.chosen);
  }

  draw();
  return root;
}

// A row of buttons of which one is pressed: entries are [value, label].
function choices(label, entries, current, choose) {
  return el("div", { class: "choices", role: "group", "aria-label": label }, el("span", {}, label),
    entries.map(([value, text]) => el("button", { type: "button", "aria-pressed": String(value === current),
      onclick: () => choose(value) }, text)));
}
