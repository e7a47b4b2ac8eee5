// The tokens of a trajectory with all that is known of each; the same walk as toolgym.viewer.tokens, to which tests
// compare it.
function float16(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// The numbers of a payload: little-endian bytes as base64, of a dtype of NumPy.
function numbersOf({ dtype, shape, base64 }) {
  const [, kind, bits] = /^(bool|u?int|float)(\d*)$/.exec(dtype.replace("bool", "uint8"));
  const name = { int: "Int", uint: "Uint", float: "Float" }[kind];
  const type = `${bits === "64" && kind !== "float" ? "Big" : ""}${name}${bits}`;
  const view = new DataView(Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0)).buffer);
  const read = dtype === "float16" ? (at) => float16(view.getUint16(at, true))
    : (at) => Number(view[`get${type}`](at, true));
  return Array.from({ length: shape[0] }, (_, at) => read((at * bits) / 8));
}

// Spans of tokens of one kind: `kind`, `sequence`, `turn`, `ids`, and of the policy's `logprobs`, `versions`, `values`.
function spansOf(value) {
  const spans = [];
  let turn = -1;
  (value?.sequences ?? []).forEach((sequence, number) => {
    spans.push({ kind: "prompt", sequence: number, turn: -1, ids: sequence.prompt_ids });
    for (const segment of sequence.segments) {
      const { token_ids: ids, is_policy: policy, logprobs } = segment;
      if (policy && ids.length) do turn += 1; while (value.turns?.[turn]?.generated_tokens === 0);
      spans.push(!policy ? { kind: "env", sequence: number, turn, ids } : {
        kind: "policy", sequence: number, turn, ids, logprobs,
        versions: segment.version_runs.flatMap((run) => Array(run.tokens).fill(run.version)),
        values: Object.fromEntries(segment.aligned.filter((each) => each.shape.length === 1)
          .map((each) => [each.name, numbersOf(each)])),
      });
    }
  });
  return spans;
}

const CHUNK = 400; // tokens of an element that the browser leaves out while it is off the screen
const HUES = [210, 30, 140, 280, 60, 330, 180, 0];

// What colours a token, as [name, colour of a token or null, legend].
function shades(spans, advantage) {
  const policy = spans.filter((span) => span.kind === "policy");
  const versions = [...new Set(policy.flatMap((span) => span.versions))];
  const names = [...new Set(policy.flatMap((span) => Object.keys(span.values)))];
  const tint = (hue, share) => `hsl(${hue} 85% 50% / ${(0.6 * Math.max(0, Math.min(1, share))).toFixed(3)})`;
  const scale = (hue, low, high) => el("span", { class: "scale", style: `--to:${tint(hue, 1)}` }, el("i", {}, low),
    el("i", {}, high));
  const kinds = { prompt: "the prompt", policy: "the policy, trained on", env: "the env, masked" };
  const list = [
    ["kind", () => null, Object.entries(kinds).map(([kind, text]) => el("span", { class: `key ${kind}` }, text))],
    ["log-prob", (span, at) => span.logprobs && tint(0, -span.logprobs[at] / 4), scale(0, "certain: 0", "−4 and less")],
  ];
  for (const name of names) {
    const most = Math.max(1e-9,
      ...policy.map((span) => (span.values[name] ?? []).reduce((a, b) => (b > a ? b : a), 0)));
    list.push([name, (span, at) => span.values?.[name] && tint(275, span.values[name][at] / most),
      scale(275, "0", number(most, 3))]);
  }
  list.push(["version", (span, at) => span.versions
    && tint(HUES[versions.indexOf(span.versions[at]) % HUES.length], 0.55),
    versions.map((version, place) => el("span",
      { class: "key", style: `background:${tint(HUES[place % HUES.length], 0.55)}` }, visible(version)))]);
  list.push(["advantage", (span) => span.logprobs && advantage !== null
    && tint(advantage >= 0 ? 140 : 0, Math.abs(advantage) / 2),
    advantage === null ? "no advantage: the trajectory is not compared with its group"
      : `${signed(advantage)} for each token of the policy`]);
  return list;
}

function drawTokens(view) {
  const { value, detail, texts } = view, spans = spansOf(value);
  if (!spans.some((span) => span.ids.length)) {
    const why = "it failed before its prompt, or another program wrote it";
    return [el("p", { class: "hint" }, `This trajectory has no token ids: ${why}.`)];
  }
  const kinds = shades(spans, detail.usable ? detail.advantage : null);
  const elements = [], places = []; // by the token's number: its element, and [span, place in it]
  const blocks = spans.map((span) => {
    const turn = span.kind === "policy" ? ` · turn ${span.turn}` : "";
    const label = `${span.kind}${turn} · ${number(span.ids.length)} tokens`;
    const chunks = [];
    for (let from = 0; from < span.ids.length; from += CHUNK) {
      chunks.push(el("div", { class: "chunk" }, span.ids.slice(from, from + CHUNK).map((id, offset) => {
        const text = texts[id], node = document.createElement("span");
        node.className = text === undefined ? "token id" : "token";
        node.textContent = text === undefined ? id : visible(text).replaceAll("\n", "↵\n") || "∅";
        node.dataset.at = elements.length;
        elements.push(node);
        places.push([span, from + offset]);
        return node;
      })));
    }
    return el("section", { class: `span ${span.kind}` }, el("h3", {}, label), chunks);
  });
  const info = el("div", { class: "info", "aria-live": "polite" }), legend = el("span", { class: "legend" });
  const body = el("div", { class: "tokens", tabindex: 0, role: "application",
    "aria-label": "Tokens: arrow keys move, p to the next of the policy" }, blocks);
  let current = -1;
  const point = (at, scroll) => {
    if (at < 0 || at >= elements.length) return;
    elements[current]?.classList.remove("current");
    current = at;
    elements[at].classList.add("current");
    if (scroll) elements[at].scrollIntoView({ block: "nearest" });
    fill(info, tokenFacts(at, ...places[at], view));
  };
  const colour = (name) => {
    const [, shade, key] = kinds.find(([each]) => each === (tokenShade = name)) ?? kinds[0];
    elements.forEach((node, at) => { node.style.background = shade(...places[at]) || ""; });
    body.classList.toggle("by-kind", name === "kind");
    fill(legend, ...[key].flat());
  };
  const select = el("select", { "aria-label": "Colour by", onchange: () => colour(select.value) },
    kinds.map(([name]) => el("option", { value: name, selected: name === tokenShade }, name)));
  for (const kind of ["mouseover", "click"]) {
    body.addEventListener(kind, ({ target }) => target.dataset.at && point(Number(target.dataset.at)));
  }
  body.addEventListener("keydown", (event) => {
    const next = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: elements.length - 1,
      ArrowDown: current + 10, ArrowUp: current - 10,
      p: places.findIndex(([span, place], at) => at > current && span.kind === "policy" && place === 0) }[event.key];
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    point(Math.max(0, Math.min(elements.length - 1, next === -1 && event.key === "p" ? current : next)), true);
  });
  colour(tokenShade);
  point(Math.max(0, places.findIndex(([span]) => span.kind === "policy")));
  const why = Object.keys(texts).length ? null : el("p", { class: "hint" }, visible(`Ids only: ${run.about.no_texts}`));
  return [el("div", { class: "token-bar" }, el("label", {}, "Colour by ", select), legend, info), why, body];
}

let tokenShade = "kind";

function tokenFacts(at, span, place, { detail, texts }) {
  const policy = span.kind === "policy", text = texts[span.ids[place]];
  return facts([
    ["token", number(at)], ["id", String(span.ids[place])], ["text", text === undefined ? null : JSON.stringify(text)],
    ["kind", policy ? `policy, turn ${span.turn}` : span.kind], ["mask", policy ? "1" : "0"],
    ["log-prob", policy ? `${number(span.logprobs[place])} (${number(100 * Math.exp(span.logprobs[place]), 3)} %)`
      : null],
    ...Object.entries(span.values ?? {}).map(([name, values]) => [name, number(values[place])]),
    ["version", policy ? span.versions[place] : null],
    ["advantage", policy ? signed(detail.usable ? detail.advantage : null) : null],
  ]);
}
