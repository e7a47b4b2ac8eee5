// A run as the page sees it: rows by their place `at`, held by the page (`PageRun`) or by a server (`ServedRun`).
// Both have `count`, `about`, columns `reward`, `stop` and `bad` (a failure, or a call that was not ok) by place,
// `row(at)` (null if it must be loaded), `load(places)`, `select(text, signal)`, `open(at)`, `find(id)` and `report()`.
const block = (name) => document.getElementById(`data-${name}`).textContent;
const json = (name) => JSON.parse(block(name));

function rowOf(columns, values, at) {
  const row = { at };
  columns.forEach((name, place) => { row[name] = values[place]; });
  if (row.reward === null) row.reward = NaN;
  return row;
}

const isBad = (row) => row.failed || row.problems.length > 0;

class PageRun {
  constructor(about) {
    this.about = about;
    this.live = false;
  }

  async start() {
    const text = block("lines");
    this.lines = (this.about.packed ? await unpacked(text) : text).split("\n");
    this.detailLines = block("details").split("\n");
    this.rows = json("figures").map((values, at) => rowOf(this.about.columns, values, at));
    this.count = this.rows.length;
    this.texts = json("texts");
    this.reward = this.rows.map((row) => row.reward);
    this.stop = this.rows.map((row) => row.stop);
    this.bad = this.rows.map(isBad);
    this.groups = Map.groupBy(this.rows.filter((row) => row.group), (row) => row.group);
  }

  row(at) { return this.rows[at]; }

  async load() {}

  line(at) { return this.rows[at].stop === "unreadable" ? JSON.parse(this.lines[at]) : this.lines[at]; }

  // Looks at lines in slices, so that a long search holds up no key.
  async select(text, signal) {
    const query = parseQuery(text);
    let places = this.rows.filter((row) => query.rows.every((holds) => holds(row))).map((row) => row.at);
    if (query.lines.length) {
      const kept = [];
      let until = performance.now() + 30;
      for (const at of places) {
        if (query.lines.every((holds) => holds(this.line(at)))) kept.push(at);
        if (performance.now() > until) {
          await new Promise((resume) => setTimeout(resume));
          signal.throwIfAborted();
          until = performance.now() + 30;
        }
      }
      places = kept;
    }
    return orderBy(query, places, (at) => this.rows[at]);
  }

  async open(at) {
    const row = this.rows[at];
    const members = (row.group ? this.groups.get(row.group) : [row]).map((member) => {
      const detail = JSON.parse(this.detailLines[member.at]);
      return { ...member, advantage: detail.advantage, usable: detail.usable };
    });
    return opened(row, this.line(at), JSON.parse(this.detailLines[at]), members, this.texts);
  }

  async find(id) { return this.rows.findIndex((row) => row.id === id || `${row.number}` === id); }

  async report() { return json("report"); }
}

class ServedRun {
  constructor(about) {
    Object.assign(this, { about, live: true, count: 0, reward: [], stop: [], bad: [], texts: {}, rows: new Map() });
  }

  async start() { while (await this.more()); }

  // Learns of rows that the server has read since; returns whether it is still reading what is there.
  async more() {
    const news = await fetched(`columns?since=${this.count}`);
    const add = (column, values) => { for (const value of values) column.push(value); };
    add(this.reward, news.reward.map((value) => value ?? NaN));
    add(this.stop, news.stop.map((place) => news.stops[place]));
    add(this.bad, news.bad);
    this.count = this.reward.length;
    return news.reading && news.reward.length > 0;
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
function opened(row, line, detail, members, texts) {
  let value = null;
  try {
    value = row.stop === "unreadable" ? null : JSON.parse(line);
  } catch { /* shown as it stands, with the row's error */ }
  return { row, line, value, detail, texts, members: members.sort((a, b) => a.sample - b.sample) };
}

async function fetched(path, signal) {
  const response = await fetch(path, { signal: AbortSignal.any([AbortSignal.timeout(120_000), ...(signal ? [signal] : [])]) });
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail ?? `the server answers ${response.status}`);
  return body;
}

async function unpacked(text) {
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
