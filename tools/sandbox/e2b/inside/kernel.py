"""An interpreter of Python as a program of a sandbox: it runs cells with the modules that run those of a session.

The first line of standard input has the modules' sources, each further one a cell. What the cell prints goes to
standard output and error, and then the mark that the request names; its result to the file that it names.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import types


def load(sources: dict[str, str]) -> None:
    """Make modules of their sources, in an order in which none needs a later one; all may be packages."""
    for name, source in sources.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__, module.__path__ = f"/sent/{name.replace('.', '/')}.py", []
        exec(compile(source, module.__file__, "exec"), vars(module))


def main() -> None:
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    load(json.loads(base64.b64decode(requests.readline())))
    from toolgym.tools.sandbox.e2b.inside import forms
    from toolgym.tools.sandbox.local.child import notebook, program

    names = types.ModuleType("__main__")
    sys.modules["__main__"] = names
    sys.argv = [""]
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # clients see a line when it is printed
    cells = notebook.Notebook(names)
    forms.add_to(vars(names))
    program.ignore_interrupts()
    for line in requests:
        request = json.loads(line)
        kept = dict(os.environ)
        os.environ.update(request["env"])
        answer = cells.run({"op": "cell", "code": request["code"], "timeout": 0.0})
        program.ignore_interrupts()
        os.environ.clear()
        os.environ.update(kept)
        with open(request["place"], "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(answer, file)
        for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            os.write(fd, request["mark"].encode())


if __name__ == "__main__":
    main()
