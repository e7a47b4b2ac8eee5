// A trajectory among others: its group side by side, and the tree of its branches.
// The lines of a conversation; those with a message's role are a `head`.
const linesOf = (value) => messagesOf(value).flatMap((message) => [{ head: true, text: message.role }, ...[
  message.reasoning_content, message.content,
  ...(message.tool_calls ?? []).flatMap(({ function: call }) => [`→ ${call.name}`,
    ...argumentsOf(call).map(([name, value]) => `${name}: ${textOf(value)}`)]),
].filter((text) => text).flatMap((text) => textOf(text).split("\n").map((line) => ({ text: line })))]);

const MOST_CELLS = 9_000_000;

// Runs of lines that both lists have (`equal`), and of those that are `gone` from the first or `come` in the second, by
// the longest common subsequence of what lies between their equal ends.
function diffLines(a, b) {
  const same = (x, y) => x.text === y.text && Boolean(x.head) === Boolean(y.head);
  let start = 0, end = 0;
  while (start < a.length && start < b.length && same(a[start], b[start])) start++;
  while (end < a.length - start && end < b.length - start && same(a[a.length - 1 - end], b[b.length - 1 - end])) end++;
  const left = a.slice(start, a.length - end), right = b.slice(start, b.length - end), width = right.length + 1;
  const runs = [];
  const add = (gone, come) => {
    const equal = Boolean(gone && come);
    if (runs.at(-1)?.equal !== equal) runs.push({ equal, gone: [], come: [] });
    if (gone) runs.at(-1).gone.push(gone);
    if (come) runs.at(-1).come.push(come);
  };
  for (let at = 0; at < start; at++) add(a[at], b[at]);
  let x = 0, y = 0;
  if ((left.length + 1) * width <= MOST_CELLS) {
    const common = new Uint32Array((left.length + 1) * width);
    for (let i = left.length - 1; i >= 0; i--) {
      for (let j = right.length - 1; j >= 0; j--) {
        common[i * width + j] = same(left[i], right[j]) ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
      }
    }
    while (x < left.length && y < right.length) {
      if (same(left[x], right[y])) add(left[x++], right[y++]);
      else if (common[(x + 1) * width + y] >= common[x * width + y + 1]) add(left[x++]);
      else add(null, right[y++]);
    }
  }
  while (x < left.length) add(left[x++]);
  while (y < right.length) add(null, right[y++]);
  for (let at = end; at > 0; at--) add(a[a.length - at], b[b.length - at]);
  return runs;
}

// A line with the part marked in which it differs from the line beside it.
function markedLine(line, other, kind) {
  if (!line) return el("div", { class: "line empty" });
  const text = line.text, beside = other ? other.text : "";
  let start = 0, end = 0;
  while (start < text.length && text[start] === beside[start]) start++;
  while (end < text.length - start && end < beside.length - start && text.at(-1 - end) === beside.at(-1 - end)) end++;
  const whole = !other || start + end === 0;
  return el("div", { class: `line ${kind} ${line.head ? "head" : ""}` }, whole ? visible(text) : [
    visible(text.slice(0, start)),
    el("mark", {}, visible(text.slice(start, text.length - end))), visible(text.slice(text.length - end))]);
}

const CONTEXT = 3; // equal lines that stay on either side of a difference
function drawDiff(a, b) {
  const runs = diffLines(linesOf(a), linesOf(b));
  const equal = (run, from, to) => run.gone.slice(from, to).flatMap(
    (line) => [markedLine(line, line, "equal"), markedLine(line, line, "equal twin")]);
  return el("div", { class: "diff" }, runs.every((run) => run.equal)
    && el("p", { class: "hint wide" }, "Both conversations are the same."),
    runs.map((run, place) => {
      const { length } = run.gone;
      if (!run.equal) {
        return Array.from({ length: Math.max(length, run.come.length) }, (_, at) => [
          markedLine(run.gone[at], run.come[at], "gone"), markedLine(run.come[at], run.gone[at], "come")]);
      }
      const from = place ? CONTEXT : 0, to = length - (place < runs.length - 1 ? CONTEXT : 0);
      if (to - from < 4) return equal(run, 0, length);
      const more = button(`… ${to - from} equal lines`, () => more.replaceWith(...equal(run, from, to)),
        { class: "more wide" });
      return [equal(run, 0, from), more, equal(run, to, length)];
    }));
}

function drawGroup(view, open) {
  const { members, row, detail } = view;
  const others = members.filter((member) => member.at !== row.at);
  const rewards = members.map((member) => member.reward).filter((reward) => !Number.isNaN(reward)), area = el("div");
  const beside = (member) => {
    for (const node of list.querySelectorAll("tr")) {
      node.classList.toggle("beside-this", Number(node.dataset.at) === member.at);
    }
    run.open(member.at).then((other) => {
      const title = (of, side) => el("h3", {}, rewardBadge(of.row), ` sample ${of.row.sample} `, el("i", {}, side));
      fill(area, el("div", { class: "diff titles" }, title(view, "open here"), title(other, "beside it")),
        view.value && other.value ? drawDiff(view.value, other.value)
          : el("p", { class: "hint" }, "One of them cannot be read."));
    }, showError);
  };
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const most = Math.max(detail.members, members.length);
  const list = table(`${members.length} of ${most} members, mean reward ${number(mean, 3)}`,
    ["sample", "reward", "advantage", "stop reason", "turns", "tokens", "beside it"],
    members.map((member) => [button(`#${member.sample}`, () => open(member.at), { title: "open" }), rewardBadge(member),
      signed(member.usable ? member.advantage : null), stopBadges(member), number(member.turns), number(member.tokens),
      member.at === row.at ? "open" : button("compare", () => beside(member))]),
    (place) => ({ "data-at": members[place].at, class: members[place].at === row.at ? "this" : "" }));
  if (others.length) beside(others.find((member) => member.usable && member.reward !== row.reward) ?? others[0]);
  const left = detail.members - members.length;
  const note = left > 0 ? el("p", { class: "hint" }, `${left} further members are not in this page.`) : null;
  return [list, note, area];
}

// The tree: a lane for each trajectory, which leaves its parent's at the turn before which it was branched.
const LANE = 44, TURN = 92, LEFT = 24;
function lanesOf(members, row) {
  const byId = new Map(members.map((member) => [member.id, member])), lanes = [];
  let root = row;
  for (let most = members.length; byId.has(root.parent) && most > 0; most--) root = byId.get(root.parent);
  const add = (member, parent) => {
    if (lanes.some((lane) => lane.member === member)) return;
    const lane = { member, parent, y: lanes.length };
    lanes.push(lane);
    members.filter((child) => child.parent === member.id && member.id)
      .sort((a, b) => b.branch_turn - a.branch_turn || a.at - b.at).forEach((child) => add(child, lane));
  };
  add(members.find((member) => member.at === root.at) ?? root, null);
  return lanes;
}

function drawTree({ members, row }, open) {
  const lanes = lanesOf(members, row), nodes = [];
  const missing = lanes[0].member.parent !== null
    ? el("p", { class: "hint" }, "The trajectory that this tree branched from is not in this page.") : null;
  if (lanes.length < 2) return [missing ?? el("p", { class: "hint" }, "No branches: this trajectory stands alone.")];
  const turns = Math.max(...lanes.map((lane) => lane.member.turns), 1);
  const x = (turn) => LEFT + turn * TURN, y = (lane) => 40 + lane.y * LANE;
  for (let turn = 0; turn <= turns; turn++) {
    nodes.push(el("line", { class: "grid", x1: x(turn), x2: x(turn), y1: 24, y2: y({ y: lanes.length - 1 }) + 16 }),
      turn < turns ? el("text", { class: "axis", x: x(turn) + TURN / 2, y: 16, "text-anchor": "middle" },
        `turn ${turn}`) : null);
  }
  for (const lane of lanes) {
    const { member } = lane, first = member.branch_turn ?? 0, height = y(lane);
    const from = x(first), to = x(Math.max(member.turns, first + 0.3));
    const bend = lane.parent ? `${y(lane.parent)}V${height - 8}Q${from} ${height} ${from + 8}` : "";
    const path = `M${from} ${bend} ${height}H${to}`;
    const here = member.at === row.at ? ", open here" : "";
    const label = `sample ${member.sample}, reward ${number(member.reward, 3)}, ${words(member.stop)}${here}`;
    const go = () => open(member.at);
    nodes.push(el("g", { class: `lane ${outcome(member)} ${member.at === row.at ? "this" : ""}`, role: "link",
      tabindex: 0, "aria-label": label, "data-at": member.at,
      onclick: go, onkeydown: (event) => { if (event.key === "Enter") { event.stopPropagation(); go(); } } },
    el("title", {}, label), el("path", { class: "hit", d: `M${from + 8} ${y(lane)}H${to}` }),
      el("path", { class: "edge", d: path }), el("circle", { cx: to, cy: y(lane), r: 7 }),
    el("text", { x: to + 14, y: y(lane) + 5 },
      `#${member.sample}  ${number(member.reward, 3)}  ${words(member.stop)}`)));
  }
  const width = x(turns) + 260, height = y({ y: lanes.length - 1 }) + 30;
  const hint = "A line leaves its parent's before the turn that was played anew; click one to open it.";
  return [missing, el("p", { class: "hint" }, `${lanes.length} trajectories. ${hint}`),
    el("div", { class: "tree" }, el("svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Tree of branches" }, nodes))];
}
