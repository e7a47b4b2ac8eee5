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

  // How many rows fit on the screen.
  get room() { return Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 1); }

  choose(position, open = false) {
    if (!this.order.length) return;
    this.at = Math.max(0, Math.min(this.order.length - 1, position));
    const top = this.at * ROW_HEIGHT, room = this.box.clientHeight;
    const above = this.box.scrollTop - top, below = top + ROW_HEIGHT - this.box.scrollTop - room;
    // One that is far off comes to the middle.
    if (Math.max(above, below) > ROW_HEIGHT) this.box.scrollTop = top - room / 2;
    else if (above > 0 || below > 0) this.box.scrollTop += above > 0 ? -above : below;
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
    const row = this.run.row(at), cells = row ? COLUMNS : [["task", "", () => "…"]];
    return el("div", {
      class: `row ${row ? outcome(row) : ""}`, role: "option", id: `row-${position}`,
      style: `top:${position * ROW_HEIGHT}px`,
      "aria-selected": String(position === this.at), "aria-posinset": position + 1, "aria-setsize": this.order.length,
      onclick: () => this.choose(position, true),
    }, cells.map(([name, , cell]) => el("span", { class: `cell ${name}` }, [cell(row)].flat().map(
      (part) => (typeof part === "string" ? visible(part) : part)))));
  }
}

// Bins of rewards, each with the terms that select it: one for each reward if there are few, else steps of 1, 2 or 5.
function binsOf(rewards) {
  const distinct = new Set();
  let low = Infinity, high = -Infinity;
  for (const reward of rewards) {
    if (!Number.isFinite(reward)) continue;
    if (distinct.size <= 12) distinct.add(reward);
    if (reward < low) low = reward;
    if (reward > high) high = reward;
  }
  if (distinct.size <= 12) {
    return [...distinct].sort((a, b) => a - b).map((value) => ({
      ends: [value, value], holds: (reward) => reward === value, terms: [`reward=${value}`] }));
  }
  const rough = (high - low) / 20, power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= rough),
    first = Math.floor(low / size);
  return Array.from({ length: Math.floor(high / size) - first + 1 }, (_, place) => {
    const [from, to] = [first + place, first + place + 1].map((edge) => Number((edge * size).toPrecision(12)));
    return { ends: [from, to], holds: (reward) => reward >= from && reward < to,
      terms: [`reward>=${from}`, `reward<${to}`] };
  });
}

// A button that puts terms into the query, in place of those that match `old`, or takes them out if they are in it.
function termButton(old, terms, label, attributes) {
  const pressed = terms.every((term) => termsOf(query).includes(term));
  const kept = termsOf(query).filter((term) => !old.test(term));
  return button(label, () => search([...kept, ...(pressed ? [] : terms)].join(" ")),
    { "aria-pressed": String(pressed), ...attributes });
}

function drawHistogram() {
  const bins = binsOf(run.reward);
  const count = (rewards) => {
    const counts = bins.map(() => 0);
    for (const reward of rewards) {
      const place = bins.findIndex((bin) => bin.holds(reward));
      if (place >= 0) counts[place]++;
    }
    return counts;
  };
  const all = count(run.reward), now = count(order.map((at) => run.reward[at])), most = Math.max(1, ...all);
  const bar = (kind, share, hue) => el("span",
    { class: `bar ${kind}`, style: `height:${(100 * share) / most}%;--share:${hue}` });
  const bars = bins.map(({ ends, terms }, place) => {
    const name = [...new Set(ends)].map((end) => number(end)).join(" to ");
    const label = `reward ${name}: ${number(now[place])} of ${number(all[place])}`;
    const hue = bins.length > 1 ? place / (bins.length - 1) : 1;
    return termButton(/^reward(>=|<=|=|<|>)/, terms, [bar("all", all[place], hue), bar("now", now[place], hue)],
      { title: label, "aria-label": label });
  });
  const ends = bins.length ? [number(bins[0].ends[0]), "reward", number(bins.at(-1).ends[1])] : [];
  fill($("histogram"), el("div", { class: "bars" }, bars),
    el("div", { class: "ends" }, ends.map((end) => el("span", {}, end))));
}

function drawChips() {
  const counts = new Map();
  for (const at of order) counts.set(run.stop[at], (counts.get(run.stop[at]) ?? 0) + 1);
  const bad = order.filter((at) => run.bad[at]).length;
  const chips = [...counts].sort((a, b) => b[1] - a[1]).map(([stop, count]) => termButton(
    /^(stop=|unreadable$)/, [stop === "unreadable" ? stop : `stop=${stop}`],
      [words(stop), el("b", {}, ` ${number(count)}`)],
    { class: /failed|died|timeout|refused|unreadable/.test(stop) ? "chip bad" : "chip" }));
  fill($("chips"), chips, bad ? el("span", { class: "hint" }, `${number(bad)} with a failure or a bad call (n)`) : "");
}

function drawHeads() {
  const sort = termsOf(query).find((term) => term.startsWith("sort:"))?.slice(5) ?? "";
  fill($("heads"), COLUMNS.map(([name, label]) => {
    const [arrow, next] = sort === `-${name}` ? [" ↓", name] : sort === name ? [" ↑", name] : ["", `-${name}`];
    return termButton(/^sort:/, [`sort:${next}`], label + arrow,
      { class: `cell ${name}`, title: `order by ${label}`, "aria-pressed": String(arrow !== "") });
  }));
}
