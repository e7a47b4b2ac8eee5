"""Functions that the processes of the tests call."""

import os
import sys
import time

loaded = []


def load():
    loaded.append(os.getpid())


def about():
    return {"pid": os.getpid(), "loaded": loaded, "modules": [*sys.modules], "environment": [*os.environ]}


def echo(value):
    print("a line that is not an answer")
    return value


def compute():
    return 9**9**9**9


def sleep():
    time.sleep(600)


def fill():
    return bytearray(1 << 40)


def crash(code):
    os._exit(code)


def fail(text):
    raise LookupError(text)


def flood():
    return "x" * (20 << 20)


def attempt(code):
    """Run code, and return the error that it raises."""
    try:
        exec(code, {})
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "done"
