"use strict";
// The episode browser: one rollout of one task at one moment of the run, as a conversation.

const STOPS = { answer: "answered", turn_limit: "turn limit", step_limit: "step limit", context_overflow: "context overflow", malformed: "malformed", sandbox_lost: "sandbox lost" };
const LONG_LINES = 6;
const PRUNED_LINES = 2;

function badge(kind, text, title) {
  return el("span", { class: "badge " + kind, title }, text);
}

function turnLink(number, text) {
  return el("a", { href: "#turn-" + number, onclick: (event) => {
    event.preventDefault();
    document.getElementById("turn-" + number)?.scrollIntoView({ behavior: "smooth", block: "start" });
  } }, text || "turn " + number);
}

// Text that shows its first lines, and the rest on demand.
function longText(text, className, shownLines = LONG_LINES) {
  const lines = text.split("\n");
  const body = el("pre", { class: className }, text);
  if (lines.length <= shownLines + 2 && text.length < 150 * shownLines) return body;
  const short = lines.slice(0, shownLines).join("\n").slice(0, 115 * shownLines);
  const label = "show all " + (lines.length > 1 ? lines.length + " lines" : text.length + " characters");
  body.textContent = short;
  const button = el("button", { type: "button", class: "unfold", onclick: () => {
    const open = body.textContent === text;
    body.textContent = open ? short : text;
    button.textContent = open ? label : "show less";
  } }, label);
  return [body, button];
}

function chunkView(piece, returned) {
  const gold = piece.gold.length > 0, pruned = piece.pruned !== null && piece.pruned !== undefined;
  return el("div", { class: "chunk" + (gold ? " gold" : "") + (pruned ? " pruned" : "") },
    el("div", { class: "head" }, el("code", {}, piece.id),
      piece.tokens !== null && el("span", { class: "quiet" }, piece.tokens + " tokens"),
      gold && badge("gold", "★ gold, fact " + piece.gold.join(" and ")),
      returned.has(piece.id) && badge(gold ? "hit" : "wrong", gold ? "✓ in the answer" : "✗ in the answer"),
      pruned && badge("cut" + (gold ? " bad" : ""), "✂ pruned in turn " + piece.pruned)),
    longText(piece.text, "", pruned && !gold ? PRUNED_LINES : LONG_LINES));
}

function argumentsView(call) {
  const entries = Object.entries(call.arguments);
  const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return entries.map(([name, value]) => {
    const text = Array.isArray(value) ? value.map(plain).join("  ") : plain(value);
    return el("span", { class: "argument" }, entries.length > 1 && el("small", {}, name + " "), text);
  });
}

function callView(call, returned) {
  const nothing = call.answered && call.pieces.length === 0;
  return el("div", { class: "call" },
    el("div", { class: "request" }, el("span", { class: "tool" }, call.name || "(no name)"), argumentsView(call)),
    call.error && el("p", { class: "alert" }, "Malformed call: " + call.error),
    call.pieces.map((piece) => ("id" in piece ? chunkView(piece, returned) :
      el("div", { class: "result" + (piece.text.startsWith("Error") ? " alert" : "") }, longText(piece.text, "")))),
    nothing && el("div", { class: "result quiet" }, "(empty result)"),
    !call.answered && el("div", { class: "result quiet" }, "(no result: the episode ended here)"));
}

function noteView(note) {
  const kind = note.ephemeral ? "shown once, not kept in the context" : note.role;
  return el("div", { class: "note-message" }, el("small", {}, kind), longText(note.text, "said"));
}

function answerView(turn, rollout) {
  const items = rollout.returned.map((item) => el("li", { class: item.gold.length ? "hit" : "wrong" },
    el("code", {}, item.id), item.gold.length ? badge("hit", "✓ fact " + item.gold.join(" and ")) : badge("wrong", "✗ not gold")));
  const missed = rollout.facts.map((fact, i) => [fact, i + 1]).filter(([fact]) => !fact.returned);
  return el("div", { class: "answer" },
    el("h4", {}, "Answer"),
    items.length ? el("ol", {}, items) : el("p", { class: "alert" }, "No document was returned."),
    missed.length > 0 && el("p", { class: "missed" }, "Missed: ",
      missed.map(([fact, number], i) => [i > 0 && "; ", "fact " + number + " (" + fact.ids.join(", ") + ")"])),
    el("details", {}, el("summary", {}, "as written"), el("pre", { class: "said" }, turn.text)));
}

function turnView(turn, rollout, limits, last) {
  const returned = new Set(rollout.returned.map((item) => item.id));
  const isAnswer = last && rollout.lists_documents && rollout.stop === "answer" && turn.calls.length === 0;
  const full = turn.usage !== null && limits.soft && turn.usage > limits.soft;
  return el("article", { class: "turn", id: "turn-" + turn.number },
    el("div", { class: "rail" }, el("b", {}, turn.number),
      turn.sampled !== null && el("span", { title: "tokens sampled in this turn" }, turn.sampled + " sampled"),
      turn.usage !== null && el("span", { class: full ? "over" : "", title: "tokens of context after this turn" },
        turn.usage.toLocaleString("en-US") + " in use")),
    el("div", { class: "body" },
      isAnswer ? answerView(turn, rollout) : turn.text && longText(turn.text, "said"),
      turn.calls.map((call) => callView(call, returned)),
      !isAnswer && !turn.text && !turn.calls.length && el("p", { class: "quiet" }, "(empty turn)"),
      turn.notes.map(noteView)));
}

function factView(fact, number) {
  const state = fact.returned ? ["hit", "✓", "returned"] : fact.seen ? ["seen", "◐", "seen, not returned"] : ["wrong", "○", "never shown"];
  return el("li", { class: state[0] }, el("span", { class: "sign", "aria-hidden": "true" }, state[1]),
    el("div", {},
      el("p", {}, !fact.text.startsWith(number + ".") && el("b", {}, number + " "), fact.text || fact.ids.join(", "), fact.is_final_answer && badge("gold", "holds the answer")),
      el("p", { class: "quiet" }, state[2], fact.seen && [" · seen in ", turnLink(fact.seen)],
        fact.pruned && [" · pruned in ", turnLink(fact.pruned)], fact.text && [" · ", el("code", {}, fact.ids.join(", "))])));
}

// Context tokens after each turn, with the thresholds of the environment as lines.
function usageChart(rollout, limits) {
  const read = rollout.turns.filter((turn) => turn.usage !== null);
  if (!read.length) return null;
  const soft = limits.soft || read[0].limit;
  const top = Math.max(limits.budget || 0, soft, ...read.map((turn) => turn.usage)) * 1.04;
  const width = 300, height = 118, left = 4, base = height - 16;
  const step = (width - left - 84) / rollout.turns.length, thick = Math.min(26, step - 3);
  const y = (tokens) => base - (tokens / top) * (base - 6);
  const chart = svg("svg", { viewBox: "0 0 " + width + " " + height, class: "usage", role: "img",
    "aria-label": "Context tokens by turn: " + read.map((t) => "turn " + t.number + " " + t.usage).join(", ") });
  for (const [name, tokens] of [["soft", soft], ["hard", limits.hard], ["budget", limits.budget]]) {
    if (!tokens) continue;
    chart.append(svg("line", { class: "limit " + name, x1: left, x2: width - 82, y1: y(tokens), y2: y(tokens) }),
      svg("text", { x: width - 76, y: y(tokens) + 3.5 }, name + " " + tokens.toLocaleString("en-US")));
  }
  for (const turn of rollout.turns) {
    const x = left + (turn.number - 1) * step;
    if (rollout.turns.length <= 16) {
      chart.append(svg("text", { x: x + thick / 2, y: height - 3, "text-anchor": "middle" }, turn.number));
    }
    if (turn.usage === null) continue;
    const state = limits.hard && turn.usage > limits.hard ? "over-hard" : turn.usage > soft ? "over-soft" : "";
    chart.append(svg("rect", { class: "bar-of " + state, x, y: y(turn.usage), width: Math.max(2, thick), height: base - y(turn.usage), rx: 1.5 },
      svg("title", {}, "turn " + turn.number + ": " + turn.usage + " tokens")));
  }
  return el("div", { class: "block" }, el("h4", {}, "Context"), chart);
}

function numbersView(title, values, limit) {
  const entries = Object.entries(values);
  if (!entries.length) return null;
  const table = (rows) => el("dl", { class: "numbers" }, rows.map(([name, value]) => [
    el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, Number.isInteger(value) ? value.toLocaleString("en-US") : formatNumber(value))]));
  return el("div", { class: "block" }, el("h4", {}, title), table(entries.slice(0, limit)),
    entries.length > limit && el("details", {}, el("summary", {}, entries.length - limit + " more"), table(entries.slice(limit))));
}

function outcomeView(rollout) {
  const advantage = rollout.metrics.advantage;
  return el("div", { class: "outcome" },
    rollout.reward !== null && el("div", {}, el("b", {}, formatNumber(rollout.reward)), el("span", {}, "reward")),
    advantage !== undefined && el("div", {}, el("b", {}, formatSigned(advantage)), el("span", {}, "advantage")),
    el("div", {}, el("b", {}, rollout.turns.length), el("span", {}, rollout.turns.length === 1 ? "turn" : "turns")),
    el("div", {}, el("b", { class: "word" }, rollout.error ? "failed" : STOPS[rollout.stop] || rollout.stop || "–"), el("span", {}, "end")));
}

function sideView(group, rollout, limits) {
  const task = group.task;
  return el("aside", {},
    el("div", { class: "block question" }, el("h4", {}, "Question"), el("p", {}, task.prompt),
      el("p", { class: "quiet" }, [task.truth && ["answer ", el("b", {}, task.truth)], rollout.swarm ? rollout.swarm.kind : task.level !== null && "level " + task.level,
        task.split, el("code", {}, task.id)].filter(Boolean).map((part, i) => [i > 0 && " · ", part]))),
    rollout.swarm && rowsView(rollout.swarm, task.truth),
    !rollout.swarm && rollout.facts.length > 0 && el("div", { class: "block" }, el("h4", {}, "To find"),
      el("ul", { class: "facts-list" }, rollout.facts.map((fact, i) => factView(fact, i + 1)))),
    outcomeView(rollout),
    usageChart(rollout, limits),
    numbersView("Measured", rollout.rewards, 8),
    numbersView("Recorded", Object.fromEntries(Object.entries(rollout.metrics).filter(([name]) =>
      !["reward", "advantage", "turns"].includes(name) && !(name in rollout.rewards))), 4));
}

function conversationView(rollout, episodes, lane, remember) {
  const tokens = rollout.segments && rollout.segments.length > 0 && el("details", { class: "token-toggle", ontoggle: (event) => {
    if (event.target.open && event.target.children.length === 1) event.target.append(tokenPanel(rollout, episodes));
  } }, el("summary", {}, "Tokens as trained", el("span", {}, rollout.segments.length +
    (rollout.segments.length === 1 ? " segment" : " segments, a new one wherever the context was edited"))));
  const system = rollout.preamble.filter((note) => note.role === "system");
  return el("div", { class: "conversation" },
    rollout.error && el("p", { class: "alert failed" }, "The episode failed and has no reward: " + rollout.error),
    tokens,
    system.length > 0 && el("details", { class: "system" }, el("summary", {}, "System prompt"), system.map((note) => el("pre", { class: "said" }, note.text))),
    rollout.swarm ? swarmView(rollout, episodes.limits, lane, remember) :
      rollout.turns.map((turn, i) => turnView(turn, rollout, episodes.limits, i === rollout.turns.length - 1)));
}

function rolloutButton(rollout, pressed, choose) {
  const text = rollout.error ? "failed" : rollout.reward === null ? "–" : formatNumber(rollout.reward);
  return el("button", { type: "button", class: rollout.error ? "failed" : "", "aria-pressed": String(pressed), onclick: choose,
    "aria-label": "rollout " + rollout.number + ", " + (rollout.error ? "failed" : "reward " + text) },
    el("small", {}, rollout.number), text);
}

// The trained policy's evaluation, else the last moment; of a swarm, the first episode with sub-agents.
function firstShown(snapshots) {
  const trained = snapshots.findIndex((s) => s.key === "eval_trained" && s.groups.length);
  const snapshot = trained >= 0 ? trained : Math.max(0, snapshots.findLastIndex((s) => s.groups.length));
  const groups = snapshots[snapshot]?.groups || [];
  const spawned = (group) => group.rollouts.findIndex((r) => r.children.length);
  const task = Math.max(0, groups.findIndex((group) => spawned(group) >= 0));
  return { snapshot, task, rollout: groups[task] ? Math.max(0, spawned(groups[task])) : 0 };
}

(function () {
  const place = document.getElementById("browser");
  if (!place) return;
  const episodes = readJson("episodes-json");
  const state = { ...firstShown(episodes.snapshots), lane: null };

  function fromHash() {
    const match = /^#episode=([^/]*)\/(\d+)\/(\d+)(?:\/(\d+))?$/.exec(location.hash);
    const snapshot = match ? episodes.snapshots.findIndex((s) => encodeURIComponent(s.key) === match[1]) : -1;
    const group = episodes.snapshots[snapshot]?.groups[match[2] - 1];
    const rollout = group?.rollouts[match[3] - 1];
    if (!rollout) return false;
    const lane = rollout.children[match[4] - 1] ? match[4] - 1 : null;
    Object.assign(state, { snapshot, task: match[2] - 1, rollout: match[3] - 1, lane });
    return true;
  }

  function remember(lane) {
    state.lane = lane;
    const key = encodeURIComponent(episodes.snapshots[state.snapshot].key);
    history.replaceState(null, "", "#episode=" + key + "/" + (state.task + 1) + "/" + (state.rollout + 1) + (lane === null ? "" : "/" + (lane + 1)));
  }

  function go(change) {
    Object.assign(state, change);
    remember(null);
    draw();
  }

  function draw() {
    const snapshot = episodes.snapshots[state.snapshot], group = snapshot.groups[state.task];
    const tasks = el("select", { "aria-label": "Task", onchange: (event) => go({ task: Number(event.target.value), rollout: 0 }) },
      snapshot.groups.map((g, i) => el("option", { value: i, selected: i === state.task }, (i + 1) + ". " + g.task.prompt.slice(0, 110))));
    const part = snapshot.groups.length < snapshot.of_tasks && "showing " + snapshot.groups.length + " of " + snapshot.of_tasks + " tasks";
    const some = group && group.rollouts.length < group.of_rollouts && group.rollouts.length + " of " + group.of_rollouts + " rollouts, worst and best among them";
    const rollout = group?.rollouts[state.rollout];
    place.replaceChildren(
      el("div", { class: "controls" },
        choices("Moment", episodes.snapshots.map((s, i) => [i, s.title]), state.snapshot, (i) => go({ snapshot: i, task: 0, rollout: 0 })),
        el("label", { class: "task" }, el("span", {}, "Task"), tasks),
        group && el("div", { class: "choices rollouts", role: "group", "aria-label": "Rollout" }, el("span", {}, "Rollout"),
          group.rollouts.map((r, i) => rolloutButton(r, i === state.rollout, () => go({ rollout: i })))),
        (part || some) && el("p", { class: "fine" }, [part, some].filter(Boolean).join("; "))),
      rollout ? el("div", { class: "episode" }, sideView(group, rollout, episodes.limits), conversationView(rollout, episodes, state.lane, remember)) :
        el("p", { class: "quiet" }, "No episode was recorded here."));
  }

  fromHash();
  addEventListener("hashchange", () => { if (fromHash()) draw(); });
  draw();
})();
