// One trajectory: its figures, its conversation, its times and its JSON.
const messagesOf = (value) => value.messages
  ?? [{ role: "user", content: value.input }, { role: "assistant", content: value.output }];

// The rows of a term and what it is, without those that are empty.
const facts = (pairs) => el("dl", { class: "facts" }, pairs.filter(([, value]) => !absent(value)).map(
  ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value instanceof Node ? value : visible(value)))));

const mapping = (values) => Object.entries(values ?? {}).map(([name, value]) => [
  visible(name), typeof value === "number" ? number(value) : textOf(value)]);

function drawConversation(view) {
  const { value, row, detail } = view;
  if (!value) {
    return [el("p", { class: "failure" }, `This line is no trajectory: ${visible(row.error)}`), longText(view.line)];
  }
  const turns = value.turns ?? [], turnAt = new Map(detail.places.map((place, turn) => [place, turn]));
  const out = [factsOf(view)];
  let records = [];
  messagesOf(value).forEach((message, place) => {
    const turn = turnAt.get(place);
    if (message.role === "tool") {
      const which = Math.max(0, records.findIndex((record) => record.id === message.tool_call_id));
      out.push(resultCard(records.splice(which, 1)[0], message));
      return;
    }
    out.push(...records.splice(0).map((record) => resultCard(record, null)));
    if (turn !== undefined) records = [...(turns[turn].tool_calls ?? [])];
    out.push(messageCard(message, turn, turns[turn]));
  });
  out.push(...records.map((record) => resultCard(record, null)));
  if (value.error) {
    out.push(el("div", { class: "failure" }, el("b", {}, `${words(value.stop_reason)}, turn ${value.error.turn}`),
      longText(value.error.message)));
  }
  return out;
}

const dateOf = (stamp) => `${new Date(stamp * 1000).toISOString().replace("T", " ").slice(0, 19)} UTC`;

function factsOf({ value, row, detail }) {
  return el("details", { class: "about" }, el("summary", {}, "About this trajectory"), facts([
    ["id", row.id], ["env", row.env], ["task", row.task], ["source", value.source], ["group", row.group],
    ["step", number(row.step)], ["role", row.role], ["validation", row.validate ? "yes" : ""],
    ["branched from", row.parent],
    ["before turn", row.branch_turn], ["blame", row.blame],
    ["trainer may use it", detail.usable ? "yes" : "no"], ["advantage", signed(detail.advantage)],
    ["note", detail.problem],
    ["began", value.started_at ? dateOf(value.started_at) : ""],
    ["ground truth", absent(value.gts) ? "" : longText(value.gts)],
    ["metrics", facts(mapping(value.metrics))], ["sampling", facts(mapping(value.sampling))],
    ["settings", facts(mapping(value.settings))],
    ["tools", value.tools?.length ? longText(value.tools.map((tool) => prettyJson(tool)).join("\n")) : ""],
  ]));
}

// A text, or texts and images: data URLs, which are all that the page's policy lets through.
function contentOf(content) {
  if (!Array.isArray(content)) return longText(content);
  return content.map((part) => (part.image_url?.url?.startsWith("data:image/")
    ? el("img", { src: part.image_url.url, alt: "image", loading: "lazy" })
    : longText(part.text ?? JSON.stringify(part))));
}

function messageCard(message, turn, record) {
  const name = turn === undefined ? message.role : `${message.role} · turn ${turn}`;
  const marks = record && [badge(plural(record.generated_tokens, "token")), badge(seconds(record.engine_seconds)),
    record.finish_reason !== "stop" && badge(record.finish_reason, "bad", "finish reason"),
    record.truncated && badge("truncated", "bad"), record.resumes > 0 && badge(`resumed ${record.resumes}×`, "warn"),
    record.reward ? badge(`reward ${signed(record.reward)}`, record.reward > 0 ? "good" : "bad") : null];
  const calls = (message.tool_calls ?? []).map((call) => callCard(call.function ?? {}));
  const thought = message.reasoning_content
    ? el("details", { class: "thought", open: message.reasoning_content.length < 600 },
    el("summary", {}, "Reasoning"), longText(message.reasoning_content)) : null;
  const content = absent(message.content) ? null : contentOf(message.content);
  const raw = !content && !calls.length && record?.text ? longText(record.text) : null; // a call that could not be read
  return el("article", { class: `message ${["user", "assistant"].includes(message.role) ? message.role : ""}`,
    "aria-label": name },
    el("header", {}, el("b", {}, visible(name)), marks), thought, content, raw, calls);
}

// A call's arguments as [name, value]: its JSON read if it can be, texts of several lines (programs, mostly) as they
// are.
function argumentsOf({ arguments: text = "" }) {
  const values = typeof text === "string" ? readJson(text) ?? text : text;
  return values !== null && typeof values === "object" ? Object.entries(values) : [["", String(values)]];
}
const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1) ?? "");

function callCard(call) {
  const values = argumentsOf(call), whole = values.map(([, value]) => textOf(value)).join(" · ");
  return el("details", { class: "call", open: whole.length < 1500 },
    el("summary", {}, el("b", {}, visible(call.name || "unreadable call")),
      el("span", { class: "peek" }, visible(whole.slice(0, 120)))),
    values.map(([name, value]) => el("div", { class: "argument" }, el("i", {}, visible(name)), longText(value))));
}

function resultCard(record, message) {
  const text = message ? message.content ?? "" : record.text;
  const ok = !record || record.status === "ok";
  const name = visible(record?.name || message?.name || "unreadable call");
  return el("details", { class: `message tool ${ok ? "" : "broken"}`, open: !ok || String(text).length < 1500 },
    el("summary", {}, el("b", {}, `result · ${name}`), record ? [
      badge(words(record.status), ok ? "good" : "bad"), badge(seconds(record.seconds)),
      record.reward ? badge(`reward ${signed(record.reward)}`) : null,
      record.infra_failure && badge("infrastructure", "bad"),
      record.retries > 0 && badge(`${record.retries} retries`, "warn")] : null),
    contentOf(text), record?.metrics && record.metrics !== "{}"
      ? el("details", { class: "thought" }, el("summary", {}, "Metrics"), longText(prettyJson(record.metrics))) : null);
}

// Seconds of each turn as bars: waiting for a place, the engine, the env with its tools.
const PARTS = [["queue", "waits"], ["engine", "engine"], ["env", "env and tools"]];
function drawTimings({ value, row }) {
  const turns = value?.turns ?? [];
  if (!turns.length) return [el("p", { class: "hint" }, "No turns, so no times.")];
  const total = (turn) => PARTS.reduce((sum, [name]) => sum + turn[`${name}_seconds`], 0);
  const longest = Math.max(...turns.map(total), 1e-9), sum = turns.reduce((all, turn) => all + total(turn), 0);
  const share = (name) => turns.reduce((all, turn) => all + turn[`${name}_seconds`], 0);
  const bars = turns.map((turn, place) => el("div", { class: "time" }, el("span", {}, `turn ${place}`),
    el("div", { class: "track", role: "img",
      "aria-label": PARTS.map(([name, label]) => `${label} ${seconds(turn[`${name}_seconds`])}`).join(", ") },
      PARTS.map(([name, label]) => el("span",
        { class: name, style: `width:${(100 * turn[`${name}_seconds`]) / longest}%`,
        title: `${label}: ${seconds(turn[`${name}_seconds`])}` }))),
    el("span", {}, seconds(total(turn)))));
  const calls = turns.flatMap((turn, place) => (turn.tool_calls ?? []).map((call) => [
    `${place}`, visible(call.name || "–"), badge(words(call.status), call.status === "ok" ? "good" : "bad"),
    seconds(call.seconds)]));
  const tokens = turns.map((turn, place) => [`${place}`, number(turn.prompt_tokens), number(turn.cached_tokens),
    number(turn.generated_tokens), number(turn.observation_tokens),
    turn.engine_seconds > 0 ? number(turn.generated_tokens / turn.engine_seconds, 3) : "–"]);
  return [
    el("p", { class: "legend" },
      PARTS.map(([name, label]) => [el("span", { class: `swatch ${name}` }), `${label} ${seconds(share(name))} `]),
      row.seconds > sum ? `other ${seconds(row.seconds - sum)} ` : "", `· whole ${seconds(row.seconds)}`),
    ...bars,
    calls.length ? table("Calls", ["turn", "tool", "status", "time"], calls) : null,
    table("Tokens", ["turn", "prompt", "cached", "generated", "observation", "generated a second"], tokens),
  ];
}

const table = (name, heads, rows, attributes = () => ({})) => el("div", { class: "table" },
  el("table", {}, el("caption", {}, name),
  el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
  el("tbody", {}, rows.map((cells, place) => el("tr", attributes(place), cells.map((cell) => el("td", {}, cell)))))));

function drawJson(view) {
  const text = view.value ? prettyJson(view.line) : view.line;
  const copy = button("Copy",
    () => navigator.clipboard.writeText(view.line).then(() => { copy.textContent = "Copied"; },
    () => getSelection().selectAllChildren(copy.nextSibling)));
  return [copy, el("pre", { class: "json" }, visible(text))];
}

// The env's own drawing, in a frame that may neither run scripts nor reach this page.
const drawDrawing = ({ detail }) =>
  [el("iframe", { sandbox: "", srcdoc: detail.drawing, title: "The env's drawing", class: "drawing" })];
