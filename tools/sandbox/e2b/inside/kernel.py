"""An interpreter of Python as a program of a sandbox: it runs cells with the modules that run those of a session.

The first line of standard input has the modules' sources, each further one a cell. What the cell prints goes to
standard output and error, and then the mark that the request names; its result to the file that it names.
"""

from __future__ import annotations

import base64
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import types


class Sources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that were sent, and their packages, which are empty."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules
        self._packages = {name.rsplit(".", n)[0] for name in modules for n in range(1, name.count(".") + 1)}

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name in self._modules or name in self._packages:
            return importlib.util.spec_from_loader(name, self, is_package=name in self._packages)
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__file__ = "/sent/" + module.__name__.replace(".", "/") + ".py"
        code = compile(self._modules.get(module.__name__, ""), module.__file__, "exec")
        exec(code, vars(module))


def main() -> None:
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    sys.meta_path.insert(0, Sources(json.loads(base64.b64decode(requests.readline()))))
    from toolgym.tools.sandbox.local.child import notebook, program

    names = types.ModuleType("__main__")
    sys.modules["__main__"] = names
    sys.argv = [""]
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # clients see a line when it is printed
    cells = notebook.Notebook(names)
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
