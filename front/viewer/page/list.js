// The list of rows, of which only those on the screen are elements; above it rewards and stop reasons, which filter.
const ROW_HEIGHT = 32;
const COLUMNS = [
  ["reward", "reward", (row) => rewardBadge(row)],
  ["task", "task", (row) => [el("i", {}, `#${row.sample} `), row.task || row.id || `line ${row.number}`]],
  ["step", "step", (row) => number(row.step)],
  ["env", "env", (row) => row.env],
  ["stop", "stop reason", (row) => stopBadges(row)],
  ["turns", "turns", (row) => number(row.turns)],
  ["calls", "calls", (row) => number(row.calls)],
  ["tokens", "tokens", (row) => number(row.tokens)],
  ["seconds", "time", (row) => seconds(row.seconds)],
];

function stopBadges(row) {
  const kind = row.failed ? "bad" : row.blame === "budget" ? "warn" : "plain";
  return [
    row.parent !== null && badge("branch", "plain", row.parent),
    badge(words(row.stop), kind, row.error || null),
    ...row.problems.map((problem) => badge(words(problem), "bad", "a tool call")),
  ];
}

class RowList {
  constructor(run, onopen) {
    Object.assign(this, { run, onopen, order: [], at: -1 });
    this.box = $("list");
    this.box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  // Shows these places; the row that was chosen stays chosen if it is among them.
  show(order) {
    const chosen = this.order[this.at];
    this.order = order;
    this.at = chosen === undefined ? -1 : order.indexOf(chosen);
    $("rows").style.height = `${order.length * ROW_HEIGHT}px`;
    this.draw();
  }

  choose(position, open = false) {
    if (!this.order.length) return;
    this.at = Math.max(0, Math.min(this.order.length - 1, position));
    const top = this.at * ROW_HEIGHT, room = this.box.clientHeight;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW_HEIGHT > this.box.scrollTop + room) this.box.scrollTop = top + ROW_HEIGHT - room;
    this.draw();
    if (open) this.onopen(this.order[this.at]);
  }

  // The position of the next failure or bad call in a direction, or -1.
  nextBad(direction) {
    let position = this.at + direction;
    while (position >= 0 && position < this.order.length && !this.run.bad[this.order[position]]) position += direction;
    return position >= 0 && position < this.order.length ? position : -1;
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(this.order.length, first + Math.ceil(this.box.clientHeight / ROW_HEIGHT) + 8);
    const places = this.order.slice(first, last);
    fill($("rows"), ...places.map((at, offset) => this.element(at, first + offset)));
    this.box.setAttribute("aria-activedescendant", this.at >= 0 ? `row-${this.at}` : "");
    if (places.some((at) => !this.run.row(at))) {
      clearTimeout(this.timer); // while the list is scrolled fast, only what it stops at is asked for
      this.timer = setTimeout(() => this.run.load(places).then(() => this.draw(), (error) => showError(error)), 25);
    }
  }

  element(at, position) {
    const row = this.run.row(at);
    const node = el("div", {
      class: `row ${row ? outcome(row) : ""}`, role: "option", id: `row-${position}`, style: `top:${position * ROW_HEIGHT}px`,
      "aria-selected": String(position === this.at), "aria-posinset": position + 1, "aria-setsize": this.order.length,
      onclick: () => this.choose(position, true),
    });
    if (row) {
      node.append(...COLUMNS.map(([name, , cell]) => el("span", { class: `cell ${name}` }, [cell(row)].flat().map(
        (part) => (typeof part === "string" ? visible(part) : part)))));
    } else node.append(el("span", { class: "cell task" }, "…"));
    return node;
  }
}

// The query with the terms that match `old` taken out, and others added.
const withTerms = (query, old, ...added) => [...termsOf(query).filter((term) => !old.test(term)), ...added].join(" ");

// Bins of rewards, each with the terms that select it: one for each reward if there are few, else steps of 1, 2 or 5.
function binsOf(rewards) {
  const distinct = new Set();
  for (const reward of rewards) {
    if (!Number.isNaN(reward)) distinct.add(reward);
    if (distinct.size > 12) break;
  }
  if (distinct.size <= 12) {
    return [...distinct].sort((a, b) => a - b).map((value) => ({
      from: value, to: value, holds: (reward) => reward === value, terms: [`reward=${value}`], name: number(value) }));
  }
  let low = Infinity, high = -Infinity;
  for (const reward of rewards) { if (reward < low) low = reward; if (reward > high) high = reward; }
  const rough = (high - low) / 20, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
  const edge = (place) => Number((place * step).toPrecision(12));
  const bins = [];
  for (let place = Math.floor(low / step); edge(place) <= high; place++) {
    const from = edge(place), to = edge(place + 1);
    bins.push({ from, to, holds: (reward) => reward >= from && reward < to,
      terms: [`reward>=${from}`, `reward<${to}`], name: `${number(from)} to ${number(to)}` });
  }
  return bins;
}

const REWARD_TERM = /^reward(>=|<=|=|<|>)/;

function drawHistogram(run, order, query, search) {
  const bins = binsOf(run.reward);
  const count = (rewards) => {
    const counts = bins.map(() => 0);
    for (const reward of rewards) {
      const place = bins.findIndex((bin) => bin.holds(reward));
      if (place >= 0) counts[place]++;
    }
    return counts;
  };
  const all = count(run.reward), now = count(order.map((at) => run.reward[at]));
  const most = Math.max(1, ...all), chosen = termsOf(query);
  const bars = bins.map((bin, place) => {
    const pressed = bin.terms.every((term) => chosen.includes(term));
    const label = `reward ${bin.name}: ${now[place].toLocaleString("en")} of ${all[place].toLocaleString("en")}`;
    const choose = () => search(withTerms(query, REWARD_TERM, ...(pressed ? [] : bin.terms)));
    const hue = `--share:${bins.length > 1 ? place / (bins.length - 1) : 1}`;
    return button([
      el("span", { class: "bar all", style: `height:${(100 * all[place]) / most}%` }),
      el("span", { class: "bar now", style: `height:${(100 * now[place]) / most}%;${hue}` }),
    ], choose, { title: label, "aria-label": label, "aria-pressed": String(pressed) });
  });
  const ends = bins.length ? [el("span", {}, number(bins[0].from)), el("span", {}, "reward"),
    el("span", {}, number(bins.at(-1).to))] : [];
  fill($("histogram"), el("div", { class: "bars" }, bars), el("div", { class: "ends" }, ends));
}

function drawChips(run, order, query, search) {
  const counts = new Map();
  let bad = 0;
  for (const at of order) {
    counts.set(run.stop[at], (counts.get(run.stop[at]) ?? 0) + 1);
    bad += run.bad[at] ? 1 : 0;
  }
  const chosen = termsOf(query);
  const chip = (term, label, count, old, kind) => {
    const pressed = chosen.includes(term);
    return button([label, el("b", {}, ` ${count.toLocaleString("en")}`)], () => search(withTerms(query, old, ...(pressed ? [] : [term]))), {
      class: `chip ${kind}`, "aria-pressed": String(pressed) });
  };
  const reasons = [...counts].sort((a, b) => b[1] - a[1]).map(([stop, count]) => (stop === "unreadable"
    ? chip("unreadable", stop, count, /^unreadable$/, "bad")
    : chip(`stop=${stop}`, words(stop), count, /^stop=/, /failed|died|timeout|refused/.test(stop) ? "bad" : "plain")));
  fill($("chips"), ...reasons, bad ? el("span", { class: "hint" }, `${bad.toLocaleString("en")} with a failure or a bad call (n)`) : "");
}

function drawHeads(query, search) {
  const sort = termsOf(query).find((term) => term.startsWith("sort:"))?.slice(5) ?? "";
  fill($("heads"), ...COLUMNS.map(([name, label]) => {
    const next = sort === `-${name}` ? [`sort:${name}`] : sort === name ? [] : [`sort:-${name}`];
    const arrow = sort === `-${name}` ? " ↓" : sort === name ? " ↑" : "";
    return button(label + arrow, () => search(withTerms(query, /^sort:/, ...next)), {
      class: `cell ${name}`, title: `order by ${label}`, "aria-pressed": String(arrow !== "") });
  }));
}
