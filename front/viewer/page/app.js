// The page: what is shown is what its address says (`#row=ID&view=tokens&q=reward<1`), so that it can be linked.
const TABS = [
  ["conversation", "Conversation", "c", drawConversation],
  ["tokens", "Tokens", "t", drawTokens],
  ["timings", "Timings", "i", drawTimings],
  ["tree", "Tree", "b", (view) => drawTree(view, openPlace), (view) => view.members.some((member) => member.parent !== null)],
  ["group", "Group", "g", (view) => drawGroup(view, openPlace)],
  ["drawing", "Drawing", "v", drawDrawing, (view) => view.detail.drawing !== null],
  ["json", "JSON", "r", drawJson],
];
const KEYS = [
  ["j k ↓ ↑", "next, previous trajectory"], ["Enter", "open it"], ["Esc", "back to the list"], ["/", "filter"],
  ["n N", "next, previous failure or bad call"], ...TABS.map(([, label, key]) => [key, label.toLowerCase()]),
  ["e", "unfold or fold all"], ["d", "light or dark"], ["← → ↑ ↓ p", "in the tokens: move; next of the policy"], ["?", "this help"],
];
const FILTERS = [
  ["reward<0.5  turns>=3  step=2", "numbers: " + NUMBERS.join(", ")], ["env=Sudoku  stop=length", "a part of a text: " + TEXTS.join(", ")],
  ["tool=malformed_json  tool=*", "calls with that status; any but ok"], ["failed  success  branch  validate  unreadable", "with ! before it: the others"],
  ['word  "two words"  /regex/', "texts in it"], ["sort:-reward", "an order, downwards"],
];

let run, list, view = null, order = [], query = "", opening = 0, searching = new AbortController();

const address = () => new URLSearchParams(location.hash.slice(1));
function go(changes, replace = false) {
  const now = address();
  for (const [name, value] of Object.entries(changes)) value ? now.set(name, value) : now.delete(name);
  if (replace) location.replace(`#${now}`);
  else location.hash = `#${now}`;
}

const keyOf = (row) => row.id || String(row.number);
const openPlace = async (at) => {
  await run.load([at]);
  go({ row: keyOf(run.row(at)), report: "" });
};

function showError(error) {
  if (error.name === "AbortError") return;
  $("filter-error").textContent = error.message;
  $("filter-error").hidden = false;
}

async function search(text) {
  go({ q: text.trim() }, true);
}

async function select(text) {
  searching.abort();
  const { signal } = (searching = new AbortController());
  query = text;
  if (document.activeElement !== $("filter")) $("filter").value = text;
  document.body.classList.add("busy");
  try {
    order = await run.select(text, signal);
    if (signal.aborted) return;
    $("filter-error").hidden = true;
    list.show(order);
  } catch (error) {
    if (!signal.aborted) showError(error);
    return;
  } finally {
    if (!signal.aborted) document.body.classList.remove("busy");
  }
  drawHistogram(run, order, query, search);
  drawChips(run, order, query, search);
  drawHeads(query, search);
  const left = run.about.left_out ? `, the first ${run.count.toLocaleString("en")} of ${(run.count + run.about.left_out).toLocaleString("en")}` : "";
  const selected = run.about.query ? ` of “${run.about.query}”` : "";
  $("count").textContent = `${order.length.toLocaleString("en")} of ${run.count.toLocaleString("en")}${left}${selected}${run.live ? " · live" : ""}`;
}

async function route() {
  const now = address(), text = now.get("q") ?? "";
  if (text !== query || !list) {
    list ??= new RowList(run, openPlace);
    await select(text);
  }
  const report = now.get("report") === "1", id = now.get("row");
  $("report").hidden = !report;
  $("show-report").setAttribute("aria-pressed", String(report));
  if (report) drawReport();
  document.body.dataset.shows = report ? "report" : id ? "detail" : "list";
  $("detail").hidden = report || !id;
  if (!id || report) {
    if (!id) view = null;
    return;
  }
  const mine = ++opening;
  if (!view || keyOf(view.row) !== id) {
    const at = view?.members.find((member) => keyOf(member) === id)?.at ?? await run.find(id);
    const opened = at < 0 ? null : await run.open(at);
    if (mine !== opening) return;
    view = opened;
    if (!view) return drawMissing(id);
    list.at = order.indexOf(view.row.at);
    if (list.at >= 0) list.choose(list.at);
  }
  drawDetail(now.get("view") ?? "conversation");
}

function drawMissing(id) {
  fill($("summary"), button("‹", () => go({ row: "" }), { "aria-label": "Back to the list" }), el("h2", {}, visible(`No trajectory ${id} in this page`)));
  fill($("tabs"));
  fill($("panel"));
}

function drawDetail(name) {
  const { row, detail } = view;
  const offered = TABS.filter(([, , , , there]) => !there || there(view));
  const [chosen, , , draw] = offered.find(([each]) => each === name) ?? offered[0];
  fill($("summary"), 
    button("‹", () => go({ row: "" }), { class: "back", title: "Back to the list (Esc)", "aria-label": "Back to the list" }),
    rewardBadge(row), el("h2", {}, visible(row.task || row.id || `line ${row.number}`), el("i", {}, ` #${row.sample}`)), stopBadges(row),
    badge(`step ${row.step}`), badge(`${row.turns} turns`), badge(`${number(row.tokens)} tokens`), badge(seconds(row.seconds)),
    detail.usable ? badge(`advantage ${signed(detail.advantage)}`, detail.advantage > 0 ? "good" : detail.advantage < 0 ? "bad" : "") : badge("not for training", "warn"),
    detail.problem && row.stop !== "unreadable" ? badge(detail.problem, "bad") : null);
  fill($("tabs"), ...offered.map(([each, label, key]) => button(label, () => go({ view: each }, true), {
    role: "tab", id: `tab-${each}`, "aria-selected": String(each === chosen), "aria-controls": "panel", title: `${label} (${key})`, tabindex: each === chosen ? 0 : -1 })));
  $("panel").setAttribute("aria-labelledby", `tab-${chosen}`);
  $("panel").dataset.view = chosen;
  try {
    fill($("panel"), draw(view));
  } catch (error) { // a line of another writer, with something else than the format says
    fill($("panel"), el("p", { class: "failure" }, `This view cannot be drawn of that line (${error.message}). See JSON.`));
  }
  $("panel").scrollTop = 0;
  if (chosen === "tokens") $("panel").querySelector(".tokens")?.focus({ preventScroll: true });
}

// The report is markup that toolgym wrote, in a tree of its own. The page's policy lets nothing in it run or load.
let reported = false;
async function drawReport() {
  if (reported) return;
  reported = true;
  const { html, problem } = await run.report();
  if (!html) return fill($("report"), el("p", { class: "hint" }, visible(problem)));
  const parsed = new DOMParser().parseFromString(html, "text/html");
  $("report").attachShadow({ mode: "open" }).replaceChildren(...parsed.head.childNodes, ...parsed.body.childNodes);
}

function step(direction, bad) {
  if (view && list.at >= 0 && order[list.at] !== view.row.at) list.at = order.indexOf(view.row.at);
  const position = bad ? list.nextBad(direction) : list.at < 0 ? 0 : list.at + direction;
  if (bad && position < 0) return showNote(`no ${direction > 0 ? "further" : "earlier"} failure in this list`);
  list.choose(position, Boolean(view) || (bad && document.body.dataset.shows === "list" && innerWidth > 900));
}

function showNote(text) {
  $("count").textContent = text;
}

function unfold() {
  const folded = [...$("panel").querySelectorAll("details:not(.about)")], more = [...$("panel").querySelectorAll(".more[aria-expanded]")];
  const open = folded.some((each) => !each.open) || more.some((each) => each.getAttribute("aria-expanded") === "false");
  for (const each of folded) each.open = open;
  for (const each of more) if ((each.getAttribute("aria-expanded") === "true") !== open) each.click();
}

function theme(change) {
  const root = document.documentElement.style;
  const dark = () => (root.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  try {
    root.colorScheme = localStorage.getItem("toolgym-theme") ?? root.colorScheme;
    if (change) localStorage.setItem("toolgym-theme", dark() ? "light" : "dark");
  } catch { /* a browser that keeps nothing for files */ }
  if (change) root.colorScheme = dark() ? "light" : "dark";
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "Escape") {
    if (typing) typing.blur();
    else if ($("help").open) $("help").close();
    else go({ row: "", report: "" });
    return;
  }
  if (typing) {
    if (typing === $("filter") && (event.key === "Enter" || event.key === "ArrowDown")) { event.preventDefault(); $("list").focus(); if (list.at < 0) list.choose(0); }
    return;
  }
  const tab = TABS.find(([, , key]) => key === event.key);
  const inPanel = event.target.closest("#panel") && /^Arrow/.test(event.key);
  const done = {
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), n: () => step(1, true), N: () => step(-1, true),
    Enter: () => list.at >= 0 && list.choose(list.at, true), "/": () => { $("filter").focus(); $("filter").select(); },
    e: unfold, d: () => theme(true), "?": () => $("help").showModal(),
    Home: () => list.choose(0), End: () => list.choose(order.length - 1), PageDown: () => list.choose(list.at + 20), PageUp: () => list.choose(list.at - 20),
    ArrowRight: () => moveTab(1), ArrowLeft: () => moveTab(-1),
  }[event.key] ?? (tab && (view ? () => go({ view: tab[0] }, true) : null));
  if (!done || inPanel || (event.target.closest("button, summary, a, [role=link]") && event.key === "Enter")) return;
  if (/^Arrow(Left|Right)$/.test(event.key) && !event.target.closest("#tabs")) return;
  if (/^(Home|End|Page)/.test(event.key) && event.target.closest("#panel")) return;
  event.preventDefault();
  done();
}

function moveTab(direction) {
  const tabs = [...$("tabs").children], next = tabs[(tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true") + direction + tabs.length) % tabs.length];
  next.click();
  addEventListener("hashchange", () => $("tabs").querySelector("[aria-selected=true]")?.focus(), { once: true });
}

async function follow() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, 1500));
    try {
      const before = run.count;
      while (await run.more());
      if (run.count !== before) await select(query);
      document.body.classList.remove("lost");
    } catch (error) {
      document.body.classList.add("lost");
      showNote(`the server does not answer: ${error.message}`);
    }
  }
}

async function begin() {
  theme(false);
  const about = json("run");
  run = about.served ? new ServedRun(about) : new PageRun(about);
  $("name").textContent = about.name;
  document.title = `${about.name} · toolgym`;
  fill($("help"), button("Close", () => $("help").close(), { class: "close" }), el("h2", {}, "Keys"), facts(KEYS), el("h2", {}, "Filters"), facts(FILTERS));
  $("theme").onclick = () => theme(true);
  $("show-help").onclick = () => $("help").showModal();
  $("show-report").onclick = () => go({ report: address().get("report") ? "" : "1" });
  $("search").addEventListener("submit", (event) => event.preventDefault());
  let timer;
  $("filter").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => search($("filter").value), 120); });
  document.addEventListener("keydown", onKey);
  await run.start();
  addEventListener("hashchange", () => route().catch(showError));
  await route();
  if (document.activeElement === document.body) $("list").focus({ preventScroll: true });
  document.body.dataset.ready = "1";
  if (run.live) follow();
}

begin().catch(showError);
