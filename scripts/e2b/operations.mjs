// Operations of E2B's JavaScript SDKs against a server, a line of JSON for each: node operations.mjs FOLDER
//
// FOLDER has the packages `e2b` and `@e2b/code-interpreter` in its node_modules. The environment says where the server
// is: E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL. The names are those of operations.py.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(path.resolve(process.argv[2], "package.json")));
const { Sandbox } = require("@e2b/code-interpreter");

const LIMIT = 20_000; // milliseconds after which an operation counts as hanging
const same = assert.deepEqual;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function refusal(work) {
  try {
    await work();
  } catch (error) {
    return error.constructor.name;
  }
  return "nothing was raised";
}

async function tryOperation(name, work) {
  const began = Date.now();
  let timer, value;
  const row = { name, outcome: "ok", detail: "" };
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("late")), LIMIT);
  });
  try {
    value = await Promise.race([work(), late]);
  } catch (error) {
    row.outcome = error.message === "late" ? "hangs" : error.code === "ERR_ASSERTION" ? "wrong" : "fails";
    row.detail = `${error.constructor.name}: ${error.message}`.slice(0, 300);
  }
  clearTimeout(timer);
  console.log(JSON.stringify({ ...row, ms: Date.now() - began }));
  return value;
}

const commands = {
  async run({ commands }) {
    const done = await commands.run("echo hello; echo err >&2; echo $FOO $BAR; pwd", { envs: { BAR: "1" } });
    same([done.stdout, done.stderr, done.exitCode], ["hello\nbar 1\n/home/user\n", "err\n", 0]);
  },
  async run_exit_code({ commands }) {
    same(await refusal(() => commands.run("exit 3")), "CommandExitError");
  },
  async run_timeout({ commands }) {
    same(await refusal(() => commands.run("sleep 30", { timeoutMs: 1000 })), "TimeoutError");
  },
  async run_bad_folder({ commands }) {
    same(await refusal(() => commands.run("pwd", { cwd: "/nope" })), "InvalidArgumentError");
  },
  async run_callbacks({ commands }) {
    let shown = "";
    await commands.run("echo a; sleep .1; echo b", { onStdout: (text) => void (shown += text) });
    same(shown, "a\nb\n");
  },
  async large_output({ commands }) {
    same((await commands.run("head -c 3000000 /dev/zero | tr '\\0' x")).stdout.length, 3_000_000);
  },
  async background_and_wait({ commands }) {
    const handle = await commands.run("sleep .1; echo done", { background: true });
    same((await handle.wait()).stdout, "done\n");
  },
  async list_processes({ commands }) {
    const handle = await commands.run("sleep 60", { background: true });
    assert((await commands.list()).some((each) => each.pid === handle.pid));
    await handle.kill();
  },
  async send_stdin({ commands }) {
    const handle = await commands.run("read line; echo got $line", { background: true, stdin: true });
    await commands.sendStdin(handle.pid, "ping\n");
    same((await handle.wait()).stdout, "got ping\n");
  },
  async close_stdin({ commands }) {
    const handle = await commands.run("cat", { background: true, stdin: true });
    await commands.sendStdin(handle.pid, "text");
    await commands.closeStdin(handle.pid);
    same((await handle.wait()).stdout, "text");
  },
  async connect_to_process({ commands }) {
    const handle = await commands.run("sleep .5; echo late", { background: true });
    same((await (await commands.connect(handle.pid)).wait()).stdout, "late\n");
  },
  async disconnect({ commands }) {
    const handle = await commands.run("sleep 60", { background: true });
    await handle.disconnect();
    assert((await commands.list()).some((each) => each.pid === handle.pid));
    same(await commands.kill(handle.pid), true);
  },
  async kill_process({ commands }) {
    const handle = await commands.run("sleep 60", { background: true });
    same(await commands.kill(handle.pid), true);
    same(await commands.kill(handle.pid), false);
    same(await refusal(() => handle.wait()), "CommandExitError");
  },
  async terminal({ pty }) {
    let shown = "";
    const handle = await pty.create({ rows: 10, cols: 60, onData: (data) => void (shown += Buffer.from(data)) });
    await pty.resize(handle.pid, { rows: 11, cols: 61 });
    await pty.sendInput(handle.pid, new TextEncoder().encode("stty size; exit\n"));
    await handle.wait();
    assert(shown.includes("11 61"), shown);
  },
  async kill_terminal({ pty }) {
    const handle = await pty.create({ rows: 10, cols: 60, onData: () => {} });
    same(await pty.kill(handle.pid), true);
  },
};

const files = {
  async write({ files }) {
    same((await files.write("/home/user/a.txt", "abc")).path, "/home/user/a.txt");
  },
  async write_many({ files }) {
    const rows = [
      { path: "m1", data: "x" },
      { path: "in/m2", data: new Uint8Array([0, 255]).buffer },
    ];
    same((await files.write(rows)).length, 2);
  },
  async read_text({ files }) {
    same(await files.read("a.txt"), "abc");
  },
  async read_bytes({ files }) {
    same([...(await files.read("in/m2", { format: "bytes" }))], [0, 255]);
  },
  async read_blob({ files }) {
    same(await (await files.read("a.txt", { format: "blob" })).text(), "abc");
  },
  async read_stream({ files }) {
    const parts = [];
    for await (const part of await files.read("a.txt", { format: "stream" })) parts.push(Buffer.from(part));
    same(Buffer.concat(parts).toString(), "abc");
  },
  async read_missing({ files }) {
    assert(["NotFoundError", "FileNotFoundError"].includes(await refusal(() => files.read("none"))));
  },
  async large_file({ files }) {
    await files.write("large", "x".repeat(9_000_000));
    same((await files.read("large", { format: "bytes" })).length, 9_000_000);
  },
  async make_dir({ files }) {
    same([await files.makeDir("d/e"), await files.makeDir("d/e")], [true, false]);
  },
  async list_files({ files }) {
    await files.write("d/f", "1");
    same((await files.list("d")).map((each) => each.name), ["e", "f"]);
  },
  async list_depth({ files }) {
    await files.write("d/e/g", "1");
    same((await files.list("/home/user/d", { depth: 2 }))[1].path, "/home/user/d/e/g");
  },
  async exists({ files }) {
    same([await files.exists("a.txt"), await files.exists("none")], [true, false]);
  },
  async get_info({ files }) {
    const info = await files.getInfo("a.txt");
    same([info.size, info.owner, info.permissions], [3, "user", "-rw-r--r--"]);
  },
  async rename({ files }) {
    same((await files.rename("a.txt", "b/c.txt")).path, "/home/user/b/c.txt");
  },
  async remove({ files }) {
    await files.remove("b");
    same(await files.exists("b/c.txt"), false);
  },
  async watch_dir({ files }) {
    await files.makeDir("watched");
    const events = [];
    const handle = await files.watchDir("watched", (event) => void events.push(event));
    await files.write("watched/n", "1");
    await pause(500);
    same(events.map((each) => `${each.name} ${each.type}`), ["n create", "n write", "n chmod"]);
    await handle.stop();
  },
  async watch_recursively({ files }) {
    await files.makeDir("deep/in");
    const events = [];
    const handle = await files.watchDir("deep", (event) => void events.push(event.name), { recursive: true });
    await files.write("deep/in/n", "1");
    await pause(500);
    assert(events.includes("in/n"));
    await handle.stop();
  },
  async download_url(sandbox) {
    await sandbox.files.write("signed", "by url");
    same(await (await fetch(await sandbox.downloadUrl("signed"))).text(), "by url");
  },
  async upload_url(sandbox) {
    const body = new FormData();
    body.append("file", new Blob(["sent"]), "uploaded");
    assert((await fetch(await sandbox.uploadUrl("uploaded"), { method: "POST", body })).ok);
    same(await sandbox.files.read("uploaded"), "sent");
  },
};

const code = {
  async run_code(sandbox) {
    const done = await sandbox.runCode('x = 41\nprint("hi")\nx + 1');
    same([done.text, done.logs.stdout], ["42", ["hi\n"]]);
  },
  async run_code_state(sandbox) {
    same((await sandbox.runCode("x")).text, "41");
  },
  async run_code_error(sandbox) {
    same((await sandbox.runCode("1/0")).error.name, "ZeroDivisionError");
  },
  async run_code_envs(sandbox) {
    const done = await sandbox.runCode("import os; os.environ['Q'] + os.environ['FOO']", { envs: { Q: "w" } });
    same(done.text, "wbar");
  },
  async run_code_callbacks(sandbox) {
    const shown = [];
    const source = "import time\nfor n in range(3):\n    print(n)\n    time.sleep(.1)";
    await sandbox.runCode(source, { onStdout: (message) => void shown.push(message.line) });
    same(shown, ["0\n", "1\n", "2\n"]);
  },
  async run_code_timeout(sandbox) {
    const began = Date.now();
    same(await refusal(() => sandbox.runCode("import time; time.sleep(60)", { timeoutMs: 1000 })), "TimeoutError");
    assert(Date.now() - began < 10_000);
    same((await sandbox.runCode("x")).text, "41");
  },
  async rich_results(sandbox) {
    const source = "class R:\n    def _repr_html_(self): return '<b>'\n    def _repr_png_(self): return b'png'\nR()";
    const [result] = (await sandbox.runCode(source)).results;
    same([result.html, result.png, result.isMainResult], ["<b>", "cG5n", true]);
  },
  async bash(sandbox) {
    await sandbox.runCode("A=1; cd /tmp", { language: "bash" });
    same((await sandbox.runCode("echo $A $PWD", { language: "bash" })).logs.stdout.join(""), "1 /tmp\n");
  },
  async contexts(sandbox) {
    const context = await sandbox.createCodeContext({ cwd: "/tmp" });
    await sandbox.runCode("y = 1", { context });
    same((await sandbox.runCode("import os; y, os.getcwd()", { context })).text, "(1, '/tmp')");
    same((await sandbox.runCode("y")).error.name, "NameError");
  },
  async list_contexts(sandbox) {
    const context = await sandbox.createCodeContext();
    assert((await sandbox.listCodeContexts()).some((each) => each.id === context.id));
  },
  async restart_context(sandbox) {
    const context = await sandbox.createCodeContext();
    await sandbox.runCode("z = 1", { context });
    await sandbox.restartCodeContext(context);
    same((await sandbox.runCode("z", { context })).error.name, "NameError");
  },
  async remove_context(sandbox) {
    const context = await sandbox.createCodeContext();
    await sandbox.removeCodeContext(context);
    assert(!(await sandbox.listCodeContexts()).some((each) => each.id === context.id));
  },
};

const life = {
  async is_running(sandbox) {
    same(await sandbox.isRunning(), true);
  },
  async sandbox_info(sandbox) {
    const info = await sandbox.getInfo();
    same([info.sandboxId, info.metadata], [sandbox.sandboxId, { k: "v" }]);
  },
  async set_timeout(sandbox) {
    const before = (await sandbox.getInfo()).endAt;
    await sandbox.setTimeout(900_000);
    assert((await sandbox.getInfo()).endAt > before);
  },
  async list_sandboxes(sandbox) {
    const page = await Sandbox.list({ query: { metadata: { k: "v" } } }).nextItems();
    assert(page.some((each) => each.sandboxId === sandbox.sandboxId));
  },
  async metrics(sandbox) {
    const [point] = await sandbox.getMetrics();
    assert(point.memTotal > point.memUsed && point.memUsed > 0);
  },
  async fork(sandbox) {
    await sandbox.files.write("forked", "x");
    const forks = await sandbox.fork({ count: 2 });
    same(await Promise.all(forks.map((each) => each.files.read("forked"))), ["x", "x"]);
    await Promise.all(forks.map((each) => each.kill()));
  },
  async snapshot(sandbox) {
    await sandbox.files.write("kept", "x");
    const kept = await sandbox.createSnapshot();
    const other = await Sandbox.create(kept.snapshotId);
    same(await other.files.read("kept"), "x");
    await other.kill();
    same(await Sandbox.deleteSnapshot(kept.snapshotId), true);
  },
  async pause(sandbox) {
    await (sandbox.pause ?? sandbox.betaPause).call(sandbox);
    same(await sandbox.isRunning(), false);
  },
  async connect(sandbox) {
    same((await (await Sandbox.connect(sandbox.sandboxId)).runCode("x")).text, "41");
  },
  async kill(sandbox) {
    const results = [await sandbox.kill(), await sandbox.kill()];
    same(results, results[0] === undefined ? [undefined, undefined] : [true, false]); // early versions return nothing
  },
  async use_killed(sandbox) {
    const names = ["TimeoutError", "SandboxNotFoundError", "NotFoundError", "SandboxError"];
    assert(names.includes(await refusal(() => sandbox.files.read("m1"))));
  },
};

const sandbox = await tryOperation("create", () =>
  Sandbox.create({ timeoutMs: 300_000, envs: { FOO: "bar" }, metadata: { k: "v" } }),
);
if (sandbox) {
  for (const part of [commands, files, code, life]) {
    for (const [name, work] of Object.entries(part)) {
      if (name !== "fork" || sandbox.fork) await tryOperation(name, () => work(sandbox));
    }
  }
}
process.exit(0);
