// The query language of toolgym.viewer.query for the rows that a page holds. Tests run the same cases through both.
const NUMBERS = "reward step sample turns calls tokens seconds engine_seconds env_seconds number".split(" ");
const TEXTS = "env task group stop blame role id error".split(" ");
const FLAGS = {
  failed: (row) => row.failed,
  success: (row) => row.success,
  branch: (row) => row.parent !== null,
  validate: (row) => row.validate,
  unreadable: (row) => row.stop === "unreadable",
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
      if (![...NUMBERS, ...TEXTS].includes(query.sort)) {
        throw new Error(`sort:NAME takes ${[...NUMBERS, ...TEXTS].join(", ")}, got '${query.sort}'`);
      }
    } else if (Object.hasOwn(FLAGS, name)) query.rows.push((row) => FLAGS[name](row) === (name === term));
    else if (term.length > 2 && term.startsWith("/") && term.endsWith("/")) query.lines.push(regexTerm(term.slice(1, -1)));
    else if (figure) query.rows.push(figureTerm(figure[1], figure[2], figure[3]));
    else query.lines.push(wordTerm(term));
  }
  return query;
}

function figureTerm(name, sign, value) {
  const wanted = sign === "=";
  if (name !== "tool" && NUMBERS.includes(name)) {
    if (!/^\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)\s*$/i.test(value)) {
      throw new Error(`${name}${sign} takes a number, got '${value}'`);
    }
    const number = /inf/i.test(value) ? (value.trim()[0] === "-" ? -Infinity : Infinity) : Number(value);
    return (row) => COMPARISONS[sign](row[name], number);
  }
  if (name !== "tool" && !TEXTS.includes(name)) {
    throw new Error(`a figure is ${[...NUMBERS, ...TEXTS, "tool"].join(", ")}, got '${name}'`);
  }
  if (sign !== "=" && sign !== "!=") throw new Error(`${name} is ${name === "tool" ? "the status of a call" : "a text"} and takes = or !=, got ${sign}`);
  if (name !== "tool") return (row) => row[name].toLowerCase().includes(value.toLowerCase()) === wanted;
  if (value === "*") return (row) => row.problems.length > 0 === wanted;
  return (row) => row.problems.some((problem) => problem.includes(value)) === wanted;
}

// A text as JSON writes it, in a line as the page holds it, where `</` is `<\/`.
function wordTerm(text) {
  const sign = (letter) => (/[a-z]/i.test(letter) ? `[${letter.toLowerCase()}${letter.toUpperCase()}]`
    : letter === "<" ? "(?:<|\\\\u003c)" : letter === "/" ? "\\\\?/" : letter.replace(/[\\^$.*+?()[\]{}|]/, "\\$&"));
  const pattern = new RegExp(Array.from(JSON.stringify(text).slice(1, -1), sign).join(""));
  return (line) => pattern.test(line);
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
  return (line) => {
    let value;
    try {
      value = JSON.parse(line);
    } catch {
      return false;
    }
    if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
    const messages = value.messages ?? [];
    const texts = messages.flatMap((message) => [message.content, message.reasoning_content]).filter((text) => text);
    const calls = messages.flatMap((message) => message.tool_calls ?? []);
    const searched = [
      ...(texts.length ? texts : [value.input ?? "", value.output ?? ""]),
      ...calls.flatMap((call) => [call.function?.name ?? "", call.function?.arguments ?? ""]),
    ];
    return searched.some((text) => compiled.test(text));
  };
}

// The places of rows in the query's order: equal ones stay as they were, and NaN comes last.
function orderBy(query, places, rowAt) {
  if (!query.sort) return places;
  const value = (at) => rowAt(at)[query.sort];
  const known = places.filter((at) => value(at) === value(at));
  const down = query.descending ? -1 : 1;
  known.sort((a, b) => (value(a) < value(b) ? -down : value(a) > value(b) ? down : 0));
  return known.concat(places.filter((at) => value(at) !== value(at)));
}
