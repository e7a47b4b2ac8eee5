// The page: what is shown is what its address says (`#row=ID&view=tokens&q=reward<1`), so that it can be linked.
const TABS = [
  ["conversation", "Conversation", "c", drawConversation],
  ["tokens", "Tokens", "t", drawTokens],
  ["timings", "Timings", "i", drawTimings],
  ["tree", "Tree", "b", (view) => drawTree(view, openPlace),
    (view) => view.members.some((member) => member.parent !== null)],
  ["group", "Group", "g", (view) => drawGroup(view, openPlace)],
  ["drawing", "Drawing", "v", drawDrawing, (view) => view.detail.drawing !== null],
  ["json", "JSON", "r", drawJson],
];
const KEYS = [
  ["j k ↓ ↑", "next, previous trajectory"], ["Home End PgUp PgDn", "move in the list"], ["Enter", "open it"],
  ["Esc", "back to the list"], ["/", "filter"],
  ["n N", "next, previous failure or bad call"], ...TABS.map(([, label, key]) => [key, label.toLowerCase()]),
  ["e", "unfold or fold all"], ["d", "light or dark"], ["← → ↑ ↓ p", "in the tokens: move; next of the policy"],
  ["← →", "on the views: the view beside it"], ["?", "this help"],
];
const FILTERS = [
  ["reward<0.5  turns>=3  step=2", "numbers: " + NUMBERS.join(", ")],
  ["env=Sudoku  stop=length", "a part of a text: " + TEXTS.join(", ")],
  ["tool=malformed_json  tool=*", "calls with that status; any but ok"],
  ["failed  success  branch  validate  unreadable", "with ! before it: the others"],
  ['word  "two words"  /regex/', "texts in it"], ["sort:-reward", "an order, downwards"],
];

let run, list, view = null, order = [], query = "", opening = 0, typing = 0, searching = new AbortController();

const address = () => new URLSearchParams(location.hash.slice(1));
function go(changes, replace = false) {
  const now = address();
  for (const [name, value] of Object.entries(changes)) value ? now.set(name, value) : now.delete(name);
  if (replace) location.replace(`#${now}`);
  else location.hash = `#${now}`;
}

const keyOf = (row) => row.id || String(row.number);
const openPlace = (at) => run.load([at]).then(() => go({ row: keyOf(run.row(at)), report: "" }), showError);

function showError(error) {
  if (error.name === "AbortError") return;
  $("filter-error").textContent = error.message;
  $("filter-error").hidden = false;
}

const search = (text) => go({ q: text.trim() }, true);
const showNote = (text) => { $("count").textContent = text; };

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
  drawHistogram();
  drawChips();
  drawHeads();
  const all = run.count + run.about.left_out;
  const left = run.about.left_out ? `, the first ${number(run.count)} of ${number(all)}` : "";
  const selected = run.about.query ? ` of “${run.about.query}”` : "";
  showNote(`${number(order.length)} of ${number(run.count)}${left}${selected}${run.live ? " · live" : ""}`);
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
  if (!id) view = null;
  if (!id || report) return;
  const mine = ++opening;
  if (!view || keyOf(view.row) !== id) {
    const at = view?.members.find((member) => keyOf(member) === id)?.at ?? await run.find(id);
    const opened = at < 0 ? null : await run.open(at);
    if (mine !== opening) return;
    view = opened;
    list.at = view ? order.indexOf(view.row.at) : -1;
    if (list.at >= 0) list.choose(list.at);
  }
  if (view) return drawDetail(now.get("view") ?? "conversation");
  fill($("summary"), back(), el("h2", {}, visible(`No trajectory ${id} in this page`)));
  for (const part of ["tabs", "panel"]) fill($(part));
}

const back = () => button("‹", () => go({ row: "" }),
  { class: "back", title: "Back to the list (Esc)", "aria-label": "Back to the list" });

function drawDetail(name) {
  const { row, detail } = view, onTab = $("tabs").contains(document.activeElement);
  const offered = TABS.filter(([, , , , there]) => !there || there(view));
  const [chosen, , , draw] = offered.find(([each]) => each === name) ?? offered[0];
  fill($("summary"), back(), rewardBadge(row),
    el("h2", {}, visible(row.task || row.id || `line ${row.number}`), el("i", {}, ` #${row.sample}`)), stopBadges(row),
    badge(`step ${row.step}`), badge(plural(row.turns, "turn")), badge(plural(row.tokens, "token")),
    badge(seconds(row.seconds)),
    detail.usable ? badge(`advantage ${signed(detail.advantage)}`, ["bad", "", "good"][1 + Math.sign(detail.advantage)])
      : badge("not for training", "warn"),
    detail.problem && row.stop !== "unreadable" ? badge(detail.problem, "bad") : null);
  fill($("tabs"), ...offered.map(([each, label, key]) => button(label, () => go({ view: each }, true), {
    role: "tab", id: `tab-${each}`, "aria-selected": String(each === chosen), tabindex: each === chosen ? 0 : -1,
    "aria-controls": "panel", title: `${label} (${key})` })));
  $("panel").setAttribute("aria-labelledby", `tab-${chosen}`);
  $("panel").dataset.view = chosen;
  try {
    fill($("panel"), draw(view));
  } catch (error) { // a line of another writer, with something else than the format says
    fill($("panel"), el("p", { class: "failure" },
      `This view cannot be drawn of that line (${error.message}). See JSON.`));
  }
  $("panel").scrollTop = 0;
  if (onTab) $(`tab-${chosen}`).focus();
  if (chosen === "tokens" && !onTab) $("panel").querySelector(".tokens")?.focus({ preventScroll: true });
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

// Goes to the tab that an arrow key, Home or End leads to from the one that has the focus.
function moveTab(event) {
  const tabs = [...$("tabs").children], at = tabs.indexOf(document.activeElement), last = tabs.length - 1;
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  tabs.at(next > last ? 0 : next).click();
}

// Goes to the next row, or to the next with a failure.
function step(direction, bad) {
  if (view && list.at >= 0 && order[list.at] !== view.row.at) list.at = order.indexOf(view.row.at);
  const position = bad ? list.nextBad(direction) : list.at < 0 ? 0 : list.at + direction;
  if (bad && position < 0) return showNote(`no ${direction > 0 ? "further" : "earlier"} failure in this list`);
  list.choose(position, Boolean(view) || (bad && document.body.dataset.shows === "list" && innerWidth > 900));
}

function unfold() {
  const all = (selector) => [...$("panel").querySelectorAll(selector)];
  const folded = all("details:not(.about)"), more = all(".more[aria-expanded]");
  const open = folded.some((each) => !each.open) || more.some((each) => each.getAttribute("aria-expanded") === "false");
  for (const each of folded) each.open = open;
  for (const each of more) if ((each.getAttribute("aria-expanded") === "true") !== open) each.click();
}

function theme() {
  const root = document.documentElement.style, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.colorScheme = (root.colorScheme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
  remembered("toolgym-theme", root.colorScheme);
}

// What the browser keeps for pages, or "" where it keeps nothing for a page from a file.
function remembered(name, value) {
  try {
    if (value) localStorage.setItem(name, value);
    return localStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

function onKey(event) {
  const { key, target } = event, typing = target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (typing && key === "Escape") return typing.blur();
  if (typing) {
    if (target.id !== "filter" || !/^(Enter|ArrowDown)$/.test(key)) return;
    event.preventDefault();
    $("list").focus();
    list.choose(Math.max(0, list.at));
    return;
  }
  if ((key === "Enter" && target.closest("button, summary, a, [role=link]"))
    || (/^Arrow/.test(key) && target.closest("#panel"))) return;
  const tab = TABS.find(([, , letter]) => letter === key);
  const far = target.id === "list" && {
    Home: 0, End: order.length, PageUp: list.at - list.room, PageDown: list.at + list.room,
  }[key];
  const act = {
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
    n: () => step(1, true), N: () => step(-1, true),
    Enter: () => list.at >= 0 && list.choose(list.at, true), "/": () => { $("filter").focus(); $("filter").select(); },
    e: unfold, d: theme, "?": () => $("help").showModal(),
    Escape: () => ($("help").open ? $("help").close() : go({ row: "", report: "" })),
  }[key] ?? (tab && view ? () => go({ view: tab[0] }, true) : Number.isInteger(far) ? () => list.choose(far) : null);
  if (!act) return;
  event.preventDefault();
  act();
}

async function follow() {
  for (let reading = true; ;) {
    await new Promise((resume) => setTimeout(resume, reading ? 500 : 1500));
    try {
      const before = run.count;
      reading = await run.more();
      if (run.count !== before) await select(query);
    } catch (error) {
      showNote(`the server does not answer: ${error.message}`);
    }
  }
}

async function begin() {
  const about = json("run");
  run = about.served ? new ServedRun(about) : new PageRun(about);
  $("name").textContent = about.name;
  document.title = `${about.name} · toolgym`;
  fill($("help"), button("Close", () => $("help").close(), { class: "close" }), el("h2", {}, "Keys"), facts(KEYS),
    el("h2", {}, "Filters"), facts(FILTERS));
  document.documentElement.style.colorScheme = remembered("toolgym-theme");
  $("theme").onclick = theme;
  $("show-help").onclick = () => $("help").showModal();
  $("show-report").onclick = () => go({ report: address().get("report") ? "" : "1" });
  $("search").addEventListener("submit", (event) => event.preventDefault());
  $("filter").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => search($("filter").value), 120);
  });
  $("tabs").addEventListener("keydown", moveTab);
  document.addEventListener("keydown", onKey);
  await run.start();
  addEventListener("hashchange", () => route().catch(showError));
  await route();
  if (document.activeElement === document.body) $("list").focus({ preventScroll: true });
  document.body.dataset.ready = "1";
  if (run.live) follow();
}

begin().catch(showError);
