"use strict";
// A swarm's episode: its stages on an axis of model turns, a lane for each assignment, the critical path,
// and below them the turns of the lane that was chosen.

const ENDINGS = { finished: "finished", step_limit: "step limit", token_limit: "token limit", error: "error", empty: "empty" };
const ROW_STATES = { right: ["hit", "✓", "right"], wrong: ["wrong", "✗", "a cell is wrong"],
  seen: ["seen", "◐", "shown, not in the answer"], never: ["wrong", "○", "never shown"] };

function percent(share) {
  return (100 * share).toFixed(3) + "%";
}

function endingOf(lane) {
  return (ENDINGS[lane.status] || lane.status) + (lane.fault ? ", lost" : "");
}

// What a turn did, for a tooltip.
function doings(turn) {
  if (!turn) return "no turn";
  const calls = turn.calls.map((call) => call.name + " " + Object.values(call.arguments).map((v) =>
    typeof v === "string" ? v : JSON.stringify(v)).join(", ").slice(0, 80));
  const many = calls.length > 6 ? [...calls.slice(0, 5), "and " + (calls.length - 5) + " more calls"] : calls;
  return many.join("\n") || turn.text.trim().slice(0, 160) || "(nothing)";
}

function numbersOfSwarm({ swarm }) {
  const told = [
    [swarm.critical_steps + (swarm.budget === null ? "" : " / " + swarm.budget), "critical steps" + (swarm.budget === null ? "" : " of the budget")],
    [swarm.total_steps, "total steps"],
    [swarm.parallelism === null ? "–" : formatNumber(swarm.parallelism) + " ×", "parallelism"],
    [swarm.width, "sub-agents at once"],
    [swarm.lanes.length, "assignments"],
  ];
  return el("div", { class: "outcome swarm-numbers" }, told.map(([value, name]) => el("div", {}, el("b", {}, value), el("span", {}, name))));
}

function ganttLegend(lanes) {
  const counts = Object.keys(ENDINGS).map((status) => [status, lanes.filter((lane) => lane.status === status).length]);
  return el("p", { class: "gantt-legend" },
    el("span", {}, el("i", { class: "cell orchestrator" }), "orchestrator"),
    counts.map(([status, count]) => el("span", { class: count ? "" : "none" }, el("i", { class: "cell " + status }), ENDINGS[status] + " " + count)),
    el("span", {}, el("i", { class: "path" }), "critical path"));
}

// The bands of the stages and the end of the budget, behind the lanes.
function ganttBack(swarm, end) {
  return el("div", { class: "gantt-back", "aria-hidden": "true" },
    swarm.stages.map((stage, i) => el("div", { class: "band", style: "left:" + percent(stage.start / end) + ";width:" + percent(stage.steps / end) },
      el("span", {}, swarm.stages.length <= 20 ? i + 1 : ""))),
    swarm.budget !== null && el("div", { class: "limit", style: "left:" + percent(swarm.budget / end) }, el("span", {}, "budget")));
}

// Along the lower edge of the bars: one step of a stage is the orchestrator's; the next ones are of its longest assignment.
function criticalPath(swarm, end) {
  const points = [];
  swarm.stages.forEach((stage, i) => {
    const turn = stage.start + 1;
    points.push([stage.start, 0], [turn, 0]);
    const row = swarm.lanes.findIndex((lane) => lane.stage === i && lane.critical) + 1;
    if (row) points.push([turn, row], [turn + swarm.lanes[row - 1].steps, row], [turn + swarm.lanes[row - 1].steps, 0]);
  });
  const rows = swarm.lanes.length + 1, line = points.map(([x, y]) => x + "," + (y + 0.91)).join(" ");
  return svg("svg", { class: "gantt-path", viewBox: "0 0 " + end + " " + rows, preserveAspectRatio: "none", "aria-hidden": "true" },
    ["casing", "path"].map((name) => svg("polyline", { class: name, points: line, "vector-effect": "non-scaling-stroke" })));
}

function stepCell(start, end, className, title, text, attributes) {
  return el("i", { class: "cell " + className, title, style: "left:" + percent(start / end) + ";width:" + percent(1 / end), ...attributes }, text);
}

function orchestratorLane(rollout, end, pressed, choose) {
  const { stages } = rollout.swarm;
  const chosen = (event) => choose(null, event.target.closest("[data-turn]")?.dataset.turn);
  return el("button", { type: "button", class: "lane", "aria-pressed": String(pressed), onclick: chosen,
    "aria-label": "orchestrator, " + stages.length + " turns" },
    el("span", { class: "who" }, el("b", {}, "orchestrator")),
    el("span", { class: "track" },
      stages.map((stage, i) => stepCell(stage.start, end, "orchestrator", "turn " + (i + 1) + "\n" + doings(rollout.turns[i]), i + 1, { "data-turn": i + 1 }))));
}

function assignmentLane(rollout, number, end, pressed, choose) {
  const lane = rollout.swarm.lanes[number], child = rollout.children[number], ending = endingOf(lane);
  const label = lane.agent + ": " + lane.prompt;
  const cells = Array.from({ length: lane.steps }, (_, i) => stepCell(lane.start + i, end, lane.status + (i === lane.steps - 1 ? " last" : ""),
    "step " + (i + 1) + " of " + lane.steps + "\n" + doings(child.turns[i])));
  const after = (lane.start + lane.steps) / end, left = after > 0.8;
  return el("button", { type: "button", class: "lane" + (lane.critical ? " critical" : ""), "aria-pressed": String(pressed), onclick: () => choose(number),
    title: label, "aria-label": "stage " + (lane.stage + 1) + ", " + label + ", " + ending + " after " + lane.steps + " steps" + (lane.critical ? ", on the critical path" : "") },
    el("span", { class: "who" }, el("b", {}, lane.agent), " ", lane.prompt),
    el("span", { class: "track" }, cells,
      (lane.status !== "finished" || !lane.steps) && el("em", { class: lane.status, style: left ? "right:" + percent(1 - lane.start / end) : "left:" + percent(after) }, ending)));
}

function ganttAxis(end) {
  const ticks = niceTicks(0, end, Math.min(end, 8)).filter((tick) => Number.isInteger(tick) && tick <= end);
  return el("div", { class: "gantt-axis", "aria-hidden": "true" }, el("span", { class: "who" }, "critical steps"),
    el("span", { class: "track" }, ticks.map((tick) => el("i", { style: "left:" + percent(tick / end) }, tick))));
}

function ganttChart(rollout, chosen, choose) {
  const swarm = rollout.swarm, end = Math.max(swarm.budget || 0, swarm.critical_steps, 1);
  return el("div", { class: "gantt" + (swarm.lanes.length > 24 ? " dense" : ""), role: "group", "aria-label": "Stages of the episode" },
    el("span", { class: "who stages", "aria-hidden": "true" }, "stage"), ganttBack(swarm, end),
    orchestratorLane(rollout, end, chosen === null, choose),
    swarm.lanes.map((_, i) => assignmentLane(rollout, i, end, chosen === i, choose)),
    criticalPath(swarm, end), ganttAxis(end));
}

// The turns of the orchestrator; those of a sub-agent are a click from the call that asked for them.
function orchestratorTurns(rollout, limits, choose) {
  const articles = rollout.turns.map((turn, i) => turnView(turn, rollout, limits, i === rollout.turns.length - 1));
  rollout.swarm.lanes.forEach((lane, i) => {
    const call = articles[lane.stage].querySelectorAll(".call")[lane.call];
    call.append(el("button", { type: "button", class: "unfold", onclick: () => choose(i) }, endingOf(lane) + " after " + lane.steps + (lane.steps === 1 ? " step" : " steps") + ": show its turns"));
  });
  return articles;
}

function assignmentTurns(rollout, number, choose) {
  const lane = rollout.swarm.lanes[number], child = rollout.children[number];
  const role = child.preamble.filter((note) => note.role === "system");
  const facts = ["asked for in turn " + (lane.stage + 1), endingOf(lane) + " after " + lane.steps + (lane.steps === 1 ? " step" : " steps"),
    lane.critical && "on the critical path", lane.wall_s !== null && lane.wall_s !== undefined && lane.wall_s.toFixed(2) + " s"];
  return [
    el("div", { class: "lane-head" },
      el("button", { type: "button", class: "unfold", onclick: () => choose(null) }, "← turns of the orchestrator"),
      el("h3", {}, "Sub-agent " + lane.agent, el("span", {}, facts.filter(Boolean).join(" · "))),
      el("p", { class: "asked" }, lane.prompt),
      role.length > 0 && el("details", { class: "system" }, el("summary", {}, "System prompt"), role.map((note) => el("pre", { class: "said" }, note.text)))),
    child.error && el("p", { class: "alert failed" }, "It was lost: " + child.error),
    child.turns.map((turn) => turnView(turn, child, {}, false))];
}

// Chart and turns of a swarm's episode, in the place of a plain conversation; `remember` is told of each choice.
function swarmView(rollout, limits, first, remember) {
  const root = el("div", { class: "swarm" });
  function choose(lane, turn) {
    remember(lane);
    draw(lane);
    if (turn) root.querySelector("#turn-" + turn)?.scrollIntoView({ behavior: "smooth", block: "start" });
  }
  function draw(lane) {
    root.replaceChildren(numbersOfSwarm(rollout), ganttChart(rollout, lane, choose), ganttLegend(rollout.swarm.lanes),
      el("div", { "aria-live": "polite" }, lane === null ? orchestratorTurns(rollout, limits, choose) : assignmentTurns(rollout, lane, choose)));
  }
  draw(first);
  return root;
}

function rowState(row, columns) {
  if (row.found) return row.right.length === columns.length ? "right" : "wrong";
  return row.seen ? "seen" : "never";
}

// The rows of the gold table beside what the answer has of them.
function rowsView({ rows }, asked) {
  if (!rows.length) return null;
  const columns = Object.keys(rows[0].cells);
  const states = rows.map((row) => rowState(row, columns));
  const cell = (row, column) => el("td", {}, row.found && !row.right.includes(column) && [el("s", {}, row.found[column] || "(empty)"), " "], row.cells[column]);
  return el("div", { class: "block" }, el("h4", {}, asked ? "To compare" : "Table wanted"),
    el("table", { class: "gold-rows" },
      el("thead", {}, el("tr", {}, el("th", {}), columns.map((column) => el("th", { scope: "col" }, column)))),
      el("tbody", {}, rows.map((row, i) => el("tr", { class: states[i] }, el("td", { class: "sign " + ROW_STATES[states[i]][0], title: ROW_STATES[states[i]][2] }, ROW_STATES[states[i]][1]),
        columns.map((column) => cell(row, column)))))),
    el("p", { class: "quiet" }, [...new Set(states)].map((state, i) => [i > 0 && " · ", ROW_STATES[state][1] + " " + (asked && state === "seen" ? "shown" : ROW_STATES[state][2])])));
}
