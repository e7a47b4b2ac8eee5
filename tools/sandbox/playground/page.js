"use strict";
const server = JSON.parse(document.body.dataset.server);
const base = location.pathname.replace(/\/(SandboxFusion\/playground\/sandbox|playground)$/, "");
const $ = (id) => document.getElementById(id);
const GRACE = server.queue_timeout + 70; // seconds beside a program's own: the server's queue, and its grace
const sessions = new Map(); // from a session's id to its title, and its cells as they are shown
let opened = 0;
let current = null;
let stopping = null;

function node(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** The server's answer to a request; what it refuses is an error with its words. */
async function ask(method, path, body, seconds = 0, signal = null) {
  const late = AbortSignal.timeout((seconds + GRACE) * 1000);
  const headers = $("token").value ? { Authorization: `Bearer ${$("token").value}` } : {};
  const payload = body === undefined || body instanceof Blob ? body : JSON.stringify(body);
  let response;
  try {
    const both = signal ? AbortSignal.any([late, signal]) : late;
    response = await fetch(base + path, { method, headers, body: payload, signal: both });
  } catch (error) {
    if (signal?.aborted) throw new Error("stopped");
    throw new Error(late.aborted ? `the server did not answer within ${seconds + GRACE} s`
      : `the server cannot be reached: ${error.message}`);
  }
  if (response.ok) return response;
  const said = await response.text();
  let refusal = { detail: said };
  try { refusal = JSON.parse(said); } catch { /* no JSON: the text itself */ }
  const problems = Array.isArray(refusal.detail) ? refusal.detail : [];
  const detail = problems.map((each) => `${each.loc.slice(1).join(".")}: ${each.msg}`).join("; ") || refusal.detail;
  const later = response.headers.get("Retry-After");
  const hint = (response.status === 401 ? " (in the field Token)" : "") + (later ? `; try again in ${later} s` : "");
  throw Object.assign(new Error(`${response.status}: ${detail}${hint}`), { reason: refusal.reason });
}

/** Do something, with its button off meanwhile; an error is shown on the page. */
async function attempt(button, doing) {
  if (button.disabled) return;
  button.disabled = true;
  $("error").hidden = true;
  try {
    await doing();
  } catch (error) {
    $("error").textContent = error.message;
    $("error").hidden = false;
    if (error.reason === "no_session") forget(current);
  } finally {
    button.disabled = false;
  }
}

function text(title, value, bad = false, cut = false) {
  if (!value) return [];
  const label = node("div", { className: "small" }, title + (cut ? " (the server cut it)" : ""));
  return [label, node("pre", { className: bad ? "bad" : "" }, value)];
}

function status(words, good) {
  return node("div", { className: `status ${good ? "good" : "wrong"}` }, words.filter(Boolean).join(" · "));
}

function download(name, blob) {
  const link = node("a", { href: URL.createObjectURL(blob), download: name.split("/").pop() });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function bytes(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

async function encoded(file) {
  const all = new Uint8Array(await file.arrayBuffer());
  let letters = "";
  for (let at = 0; at < all.length; at += 32_768) letters += String.fromCharCode(...all.subarray(at, at + 32_768));
  return btoa(letters);
}

function seconds(field) {
  const value = Number($(field).value);
  if (!(value > 0 && value <= server.max_timeout)) throw new Error(
    `Seconds: more than 0, at most ${server.max_timeout}`);
  return value;
}

// ---------------------------------------------------------------- programs

async function runProgram() {
  const wanted = seconds("seconds");
  const body = { language: $("language").value, code: $("code").value, stdin: $("stdin").value, files: {} };
  body.run_timeout = body.compile_timeout = wanted;
  if ($("memory").value) body.memory_limit_MB = Number($("memory").value);
  for (const file of $("files").files) body.files[file.name] = await encoded(file);
  body.fetch_files = $("fetch").value.split(",").map((name) => name.trim()).filter(Boolean);
  stopping = new AbortController();
  $("stop").disabled = false;
  $("output").replaceChildren(node("p", { className: "small" }, "running…"));
  try {
    const response = await ask("POST", "/run_code", body, 2 * wanted, stopping.signal);
    showProgram(await response.json(), body.fetch_files);
  } catch (error) {
    $("output").replaceChildren(node("p", { className: "small" }, error.message));
    throw error;
  } finally {
    $("stop").disabled = true;
  }
}

function showProgram(answer, fetched) {
  const parts = [status([answer.status, answer.message], answer.status === "Success")];
  for (const [title, run] of [["compiler", answer.compile_result], ["program", answer.run_result]]) {
    if (!run) continue;
    const figures = [
      title, run.status, run.return_code === null ? "" : `return code ${run.return_code}`,
      run.execution_time === null ? "" : `${run.execution_time.toFixed(3)} s`,
      run.cpu_time === null ? "" : `${run.cpu_time.toFixed(3)} s of CPU`,
      !run.memory_bytes ? "" : `${(run.memory_bytes / 1048576).toFixed(1)} MiB`,
    ];
    parts.push(node("div", { className: "small" }, figures.filter(Boolean).join(" · ")));
    parts.push(...text("stdout", run.stdout, false, run.stdout_truncated));
    parts.push(...text("stderr", run.stderr, true, run.stderr_truncated));
  }
  for (const name of fetched) {
    const content = answer.files[name];
    const link = node("button", { onclick: () => download(name, new Blob([bytes(content)])) }, `Download ${name}`);
    parts.push(content === undefined ? node("div", { className: "small" }, `no file ${name}`) : link);
  }
  $("output").replaceChildren(...parts);
}

// ---------------------------------------------------------------- sessions

const path = (id, rest = "") => `/sessions/${encodeURIComponent(id)}${rest}`;

async function openSession() {
  const info = await (await ask("POST", "/sessions", {})).json();
  opened += 1;
  sessions.set(info.id, { title: `Session ${opened}`, cells: [] });
  await choose(info.id);
}

async function choose(id) {
  current = id;
  showSessions();
  if (id && !sessions.get(id).over) {
    await listFiles();
    $("cell").focus();
  }
}

function showSessions() {
  $("sessions").replaceChildren(...[...sessions.keys()].map((id) => node("button", {
    role: "tab", ariaSelected: String(id === current), onclick: () => attempt($("open"), () => choose(id)),
  }, sessions.get(id).title)));
  $("editor").hidden = $("session-files").hidden = current === null;
  $("cells").replaceChildren(...(sessions.get(current)?.cells ?? []).map(showCell));
}

async function runCell() {
  const id = current, code = $("cell").value, wanted = seconds("cell-seconds");
  const result = await (await ask("POST", path(id, "/cells"), { code, timeout: wanted }, wanted)).json();
  sessions.get(id)?.cells.push({ code, result });
  if ($("cell").value === code) $("cell").value = "";
  showSessions();
  if (result.alive) await listFiles();
  else if (sessions.has(id)) sessions.get(id).over = true;
}

function showCell({ code, result }) {
  const words = [result.status, `${result.duration.toFixed(3)} s`, result.message,
    result.alive ? "" : "the session has ended: open another one"];
  const shown = result.display.flatMap((data) => {
    const kind = ["image/png", "image/jpeg"].find((name) => name in data);
    if (kind) return [node("img", { src: `data:${kind};base64,${data[kind].replace(/\s/g, "")}`, alt: "output" })];
    return text("display", data["text/plain"] ?? JSON.stringify(data));
  });
  const error = result.error;
  const trace = error ? error.traceback.join("").trim() || `${error.name}: ${error.value}` : "";
  return node("div", { className: "cell" }, node("pre", {}, code), ...text("stdout", result.stdout, false,
    result.stdout_truncated), ...text("stderr", result.stderr, true, result.stderr_truncated), ...shown,
  ...text("result", result.result), ...text("error", trace, true), status(words, result.status === "ok"));
}

async function fork() {
  const id = current;
  const info = await (await ask("POST", path(id, "/fork"), {})).json();
  const { title, cells } = sessions.get(id);
  opened += 1;
  sessions.set(info.id, { title: `Session ${opened}, fork of ${title.split(/[ ,]/)[1]}`, cells: [...cells] });
  await choose(info.id);
}

function forget(id) {
  sessions.delete(id);
  current = [...sessions.keys()].pop() ?? null;
  showSessions();
}

async function closeSession() {
  const id = current;
  if (!sessions.get(id).over) await ask("DELETE", path(id));
  forget(id);
  await choose(current);
}

async function listFiles() {
  const id = current;
  const { files } = await (await ask("POST", path(id, "/files"), { action: "walk", path: "." })).json();
  const rows = files.filter((file) => file.kind === "file").map((file) => node("div", { className: "row" },
    node("button", { onclick: (event) => attempt(event.target, async () => {
      const name = file.name.split("/").map(encodeURIComponent).join("/");
      download(file.name, await (await ask("GET", path(id, `/files/${name}`))).blob());
    }) }, "Download"), `${file.name}, ${file.size} bytes`));
  $("listing").replaceChildren(...(rows.length ? rows : [node("div", { className: "small" }, "no files yet")]));
}

async function upload() {
  for (const file of $("upload").files) {
    await ask("PUT", path(current, `/files/${encodeURIComponent(file.name)}`), file);
  }
  $("upload").value = "";
  await listFiles();
}

// ---------------------------------------------------------------- the page

function selectTab(name) {
  for (const each of ["program", "session"]) {
    $(each).hidden = each !== name;
    $(`tab-${each}`).ariaSelected = String(each === name);
  }
}

function edits(area, button) {
  let leaving = false;
  $(area).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      $(button).click();
    } else if (event.key === "Tab" && !event.shiftKey && !leaving) {
      event.preventDefault();
      event.target.setRangeText("    ", event.target.selectionStart, event.target.selectionEnd, "end");
    }
    leaving = event.key === "Escape";
  });
}

function setLanguage() {
  const example = server.examples[$("language").value];
  if (example && ($("code").value === "" || Object.values(server.examples).includes($("code").value))) {
    $("code").value = example;
  }
}

async function start() {
  const health = await (await ask("GET", "/health")).json();
  const limits = server.limits, isolation = health.isolation;
  $("language").replaceChildren(...health.languages.map((name) => node("option", {}, name)));
  $("language").value = health.languages.includes("python") ? "python" : health.languages[0];
  setLanguage();
  $("about").textContent = [`version ${health.version}`, `isolation: ${isolation.level}`, `network: ${server.network}`,
    `${limits.memory_mb} MiB, ${limits.processes} processes, ${limits.disk_mb} MiB of files`,
    `at most ${server.max_timeout} s`, ...isolation.missing].join(" · ");
}

$("token-label").hidden = !server.token;
$("memory").placeholder = server.limits.memory_mb;
const clicks = { run: runProgram, open: openSession, "run-cell": runCell, fork, close: closeSession };
for (const [id, doing] of Object.entries(clicks)) $(id).onclick = () => attempt($(id), doing);
$("stop").onclick = () => stopping?.abort();
$("upload").onchange = () => attempt($("upload"), upload);
$("language").onchange = setLanguage;
for (const name of ["program", "session"]) $(`tab-${name}`).onclick = () => selectTab(name);
for (const area of ["code", "stdin"]) edits(area, "run");
edits("cell", "run-cell");
addEventListener("pagehide", () => {
  const headers = $("token").value ? { Authorization: `Bearer ${$("token").value}` } : {};
  for (const id of sessions.keys()) fetch(base + path(id), { method: "DELETE", headers, keepalive: true });
});
attempt($("tab-program"), start);
