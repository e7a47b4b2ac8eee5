// A run as the page sees it: rows by their place `at`, held by the page (`PageRun`) or by a server (`ServedRun`).
// Both have `count`, `about`, columns `reward`, `stop` and `bad` (a failure, or a call that was not ok) by place,
// `row(at)` (null if it must be loaded), `load(places)`, `select(text, signal)`, `open(at)`, `find(id)` and `report()`.
const block = (name) => document.getElementById(`data-${name}`).textContent;
const json = (name) => JSON.parse(block(name));

// JSON as Python writes it, which knows NaN and infinities: these become texts. null if it is none.
function readJson(text, reviver) {
  const plain = (part) => (part[0] === '"' ? part : `"${part}"`);
  for (const json of [() => text, () => text.replace(/"(?:[^"\\]|\\.)*"|-?(?:NaN|Infinity)/g, plain)]) {
    try {
      return JSON.parse(json(), reviver);
    } catch { /* the next one, or null */ }
  }
  return null;
}

function rowOf(columns, values, at) {
  const row = { at };
  columns.forEach((name, place) => { row[name] = values[place]; });
  row.reward = Number(row.reward ?? NaN);
  return row;
}

class PageRun {
  live = false;
  constructor(about) { this.about = about; }
  async start() {
    const text = block("lines");
    this.lines = (this.about.packed ? await unpacked(text) : text).split("\n");
    this.details = block("details").split("\n");
    this.texts = json("texts");
    const rows = json("figures").map((values, at) => rowOf(this.about.columns, values, at));
    Object.assign(this, { rows, count: rows.length, reward: rows.map((row) => row.reward),
      stop: rows.map((row) => row.stop) });
    this.bad = rows.map((row) => row.failed || row.problems.length > 0);
    this.groups = Map.groupBy(rows.filter((row) => row.group), (row) => row.group);
  }
  row(at) { return this.rows[at]; }
  async load() {}
  line(at) { return this.rows[at].stop === "unreadable" ? JSON.parse(this.lines[at]) : this.lines[at]; }

  // Looks at lines in slices, so that a long search holds up no key.
  async select(text, signal) {
    const query = parseQuery(text), kept = [];
    let until = performance.now() + 30;
    for (const row of this.rows) {
      if (query.rows.every((holds) => holds(row)) && query.lines.every((holds) => holds(this.line(row.at)))) {
        kept.push(row.at);
      }
      if (performance.now() < until) continue;
      await new Promise((resume) => setTimeout(resume));
      signal.throwIfAborted();
      until = performance.now() + 30;
    }
    return orderBy(query, kept, (at) => this.rows[at]);
  }
  async open(at) {
    const row = this.rows[at];
    const members = (row.group ? this.groups.get(row.group) : [row]).map((member) => {
      const detail = JSON.parse(this.details[member.at]);
      return { ...member, advantage: detail.advantage, usable: detail.usable };
    });
    return opened(row, this.line(at), JSON.parse(this.details[at]), members, this.texts);
  }
  async find(id) { return this.rows.findIndex((row) => row.id === id || `${row.number}` === id); }
  async report() { return json("report"); }
}

class ServedRun {
  constructor(about) {
    Object.assign(this, { about, live: true, count: 0, reward: [], stop: [], bad: [], texts: {}, rows: new Map() });
  }
  async start() { while (await this.more() && !this.count); }

  // Learns of rows that the server has read since; returns whether it is still reading what is there.
  async more() {
    const news = await fetched(`columns?since=${this.count}`);
    const add = (column, values) => { for (const value of values) column.push(value); };
    add(this.reward, news.reward.map((value) => Number(value ?? NaN)));
    add(this.stop, news.stop.map((place) => news.stops[place]));
    add(this.bad, news.bad);
    this.count = this.reward.length;
    return news.reading;
  }
  row(at) { return this.rows.get(at) ?? null; }
  async load(places) {
    const missing = places.filter((at) => !this.rows.has(at));
    if (!missing.length) return;
    const { rows } = await fetched(`rows?numbers=${missing.join(",")}`);
    for (const values of rows) this.keep(values);
  }
  keep(values) {
    const row = rowOf(this.about.columns, values, 0);
    row.at = row.number;
    if (this.rows.size > 5000) this.rows.clear();
    this.rows.set(row.at, row);
    return row;
  }
  async select(text, signal) {
    if (!text.trim()) return Array.from({ length: this.count }, (_, at) => at);
    const { numbers } = await fetched(`rows?all=1&limit=0&query=${encodeURIComponent(text)}`, signal);
    return numbers.filter((at) => at < this.count);
  }
  async open(at) {
    const { row, line, detail, members, texts } = await fetched(`row/${at}`);
    Object.assign(this.texts, texts);
    const group = members.map(([values, extra]) => ({ ...this.keep(values), ...extra }));
    return opened(this.keep(row), line, detail, group, this.texts);
  }
  async find(id) { return (await fetched(`find?id=${encodeURIComponent(id)}`)).number; }
  async report() { return fetched("report"); }
}

// A trajectory whole: its `line` as text, its `value` (null if the line is no JSON), its group's `members` by sample.
const opened = (row, line, detail, members, texts) => ({
  row, line, detail, texts, value: row.stop === "unreadable" ? null : trajectoryOf(readJson(line)),
  members: members.sort((a, b) => a.sample - b.sample),
});

// A row of verl keeps the columns that verl writes; others may have names of ours, and are metrics.
function trajectoryOf(value) {
  if (!value || value.format_version) return value; // null: JavaScript cannot read the line
  const { input, output, gts, score, step, ...metrics } = value;
  return { input: String(input), output: String(output ?? ""), gts, score, step, metrics };
}

async function fetched(path, signal) {
  const response = await fetch(path,
    { signal: AbortSignal.any([AbortSignal.timeout(120_000), ...(signal ? [signal] : [])]) });
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail ?? `the server answers ${response.status}`);
  return body;
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// The query language of toolgym.viewer.query for the rows that a page holds. Tests run the same cases through both.
const NUMBERS = "reward step sample turns calls tokens seconds engine_seconds env_seconds number".split(" ");
const TEXTS = "env task group stop blame role id error".split(" ");
const FLAGS = {
  failed: (row) => row.failed, success: (row) => row.success, branch: (row) => row.parent !== null,
  validate: (row) => row.validate, unreadable: (row) => row.stop === "unreadable",
};
const COMPARISONS = {
  "=": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b,
  "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
};

// The terms as they were typed, quotes included.
const termsOf = (text) =>
  (text.match(/\/(?:\\.|[^/\\])+\/(?=\s|$)|(?:[^\s"]|"[^"]*")+|"[^"]*$/g) ?? []).filter((part) => /[^ "]/.test(part));

// `rows` look at a row's figures, `lines` at its line; `sort` is a figure's name or "". Throws an Error that says why.
function parseQuery(text) {
  const query = { rows: [], lines: [], sort: "", descending: false };
  for (const raw of termsOf(text)) {
    const term = raw.startsWith("/") ? raw : raw.replaceAll('"', "");
    const name = term.replace(/^!/, "");
    const figure = /^([a-z_]+)(!=|<=|>=|=|<|>)([^]*)$/.exec(term);
    if (term.startsWith("sort:")) {
      query.sort = term.slice(5).replace(/^-/, "");
      query.descending = term.startsWith("sort:-");
      const names = [...NUMBERS, ...TEXTS];
      if (!names.includes(query.sort)) throw new Error(`sort:NAME takes ${names.join(", ")}, got '${query.sort}'`);
    } else if (Object.hasOwn(FLAGS, name)) query.rows.push((row) => FLAGS[name](row) === (name === term));
    else if (/^\/[^]+\/$/.test(term)) query.lines.push(regexTerm(term.slice(1, -1)));
    else if (figure) query.rows.push(figureTerm(figure[1], figure[2], figure[3]));
    else query.lines.push(wordTerm(term));
  }
  return query;
}

function figureTerm(name, sign, value) {
  const wanted = sign === "=";
  if (NUMBERS.includes(name)) {
    if (!/^\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)\s*$/i.test(value)) {
      throw new Error(`${name}${sign} takes a number, got '${value}'`);
    }
    const number = /inf/i.test(value) ? (value.trim()[0] === "-" ? -Infinity : Infinity) : Number(value);
    return (row) => COMPARISONS[sign](row[name], number);
  }
  if (name !== "tool" && !TEXTS.includes(name)) {
    throw new Error(`a figure is ${[...NUMBERS, ...TEXTS, "tool"].join(", ")}, got '${name}'`);
  }
  if (sign !== "=" && sign !== "!=") throw new Error(
    `${name} is ${name === "tool" ? "the status of a call" : "a text"} and takes = or !=, got ${sign}`);
  if (name !== "tool") return (row) => row[name].toLowerCase().includes(value.toLowerCase()) === wanted;
  if (value === "*") return (row) => row.problems.length > 0 === wanted;
  return (row) => row.problems.some((problem) => problem.includes(value)) === wanted;
}

// A text in any of a line's, upper or lower case. A part that JSON writes in one way alone is looked for first.
function wordTerm(text) {
  const wanted = text.toLowerCase();
  const part = new RegExp((wanted.match(/[a-z0-9 ]+/g) ?? [""]).reduce((a, b) => (b.length > a.length ? b : a)), "i");
  return (line) => part.test(line) && textsOf(line).some((found) => found.toLowerCase().includes(wanted));
}

// The texts that a line is searched by; the line itself if it is no JSON object.
function textsOf(line) {
  const value = readJson(line);
  if (typeof value !== "object" || value === null || Array.isArray(value)) return [line];
  const { format_version, id, task_id, group_id, request_id, error, messages, input, output } = value;
  const texts = [id, task_id, group_id, request_id, error, format_version ? messages : [input, output]];
  return leaves(texts, ["role", "type", "id", "tool_call_id", "turn"]);
}

// The texts within a value, and its numbers as texts. Arguments of calls, which are JSON, are read.
function leaves(value, hidden = []) {
  if (typeof value === "string") return [value];
  if (typeof value !== "object") return value === undefined ? [] : [String(value)];
  return Object.entries(value ?? {}).flatMap(([name, part]) => (hidden.includes(name) ? []
    : name !== "arguments" || !hidden.length ? leaves(part, hidden)
    : leaves(typeof part === "string" ? readJson(part) ?? part : part)));
}

// A regular expression of Python, of which what JavaScript writes otherwise is translated, or refused.
function regexTerm(source) {
  const flags = /^\(\?([ims]+)\)/.exec(source);
  const pattern = source.slice(flags ? flags[0].length : 0).replaceAll("(?P<", "(?<");
  if (/\\[AZ]|\(\?P=|\(\?\(|\(\?#/.test(pattern)) {
    throw new Error(`/${source}/ has what a page cannot look for: \\A, \\Z, (?P=…), (?(…) or (?#…)`);
  }
  let compiled;
  try {
    compiled = new RegExp(pattern, flags ? flags[1] : "");
  } catch (error) {
    throw new Error(`/${source}/ is no regular expression: ${error.message}`);
  }
  return (line) => textsOf(line).some((text) => compiled.test(text));
}

// The places of rows in the query's order: equal ones stay as they were, and NaN comes last.
function orderBy(query, places, rowAt) {
  if (!query.sort) return places;
  const value = (at) => rowAt(at)[query.sort], down = query.descending ? -1 : 1;
  const known = places.filter((at) => value(at) === value(at));
  known.sort((a, b) => (value(a) < value(b) ? -down : value(a) > value(b) ? down : 0));
  return known.concat(places.filter((at) => value(at) !== value(at)));
}
