"""An MCP server without an SDK, whose answers break rules: raw_server.py, over standard input and output."""

from __future__ import annotations

import json
import os
import sys

TEXT = {"type": "text", "text": "before"}
ANSWERS = {
    "unknown_block": {"content": [TEXT, {"type": "hologram", "data": 1}]},
    "text_of_unknown_block": {"content": [{"type": "note", "text": "read me"}]},
    "no_content": {},
    "text_content": {"content": "only a text"},
    "null_content": {"content": None, "structuredContent": {"n": 7}},
    "list_as_structure": {"content": [], "structuredContent": [1, 2]},
    "unfit_structure": {"content": [TEXT], "structuredContent": {"n": "seven"}},
    "no_structure": {"content": [TEXT]},
    "bad_flag": {"content": [TEXT], "isError": "no"},
    "bad_annotations": {"content": [{**TEXT, "annotations": {"priority": "high"}}]},
}
ERRORS = {
    "quota": {"code": -32000, "message": "quota exceeded"},
    "internal": {"code": -32603, "message": "division by zero", "data": {"line": 7}},
    "request": {"code": -32001, "message": "Request rejected", "data": "the branch is protected"},
}
OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SCHEMAS = {
    "tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"at": {"type": "array", "items": [{"type": "number"}, {"type": "number"}]}},
    },
    "pattern": {"type": "object", "properties": {"word": {"type": "string", "pattern": r"^\p{L}+$"}}},
    "dangling": {"type": "object", "properties": {"x": {"$ref": "#/$defs/missing"}}},
    "empty": {},
    "capitals": {"type": "OBJECT", "properties": {"x": {"type": "STRING"}}},
}
PLAIN = {"type": "object", "properties": {}}
TOOLS = [
    *({"name": name, "inputSchema": schema} for name, schema in SCHEMAS.items()),
    *({"name": name, "inputSchema": PLAIN, "outputSchema": OUTPUT} for name in (*ANSWERS, *ERRORS, "silent", "crash")),
    {"name": "bad_description", "description": 7, "inputSchema": PLAIN, "annotations": "none"},
    {"name": "no_schema"},
    {"description": "a tool without a name"},
]


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def answer(request):
    method, number = request.get("method"), request.get("id")
    if method == "initialize":
        about = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        send({"id": number, "result": {**about, "serverInfo": {"name": "raw", "version": "1"}}})
    elif method == "tools/list":
        print("DEBUG: listing tools", flush=True)
        send({"id": number, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        name = request["params"]["name"]
        if name == "crash":
            os._exit(9)
        text = f"called {name} {json.dumps(request['params'].get('arguments'))}"
        if name in ERRORS:
            send({"id": number, "error": ERRORS[name]})
        elif name != "silent":
            send({"id": number, "result": ANSWERS.get(name, {"content": [{"type": "text", "text": text}]})})
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    print("raw server is listening", flush=True)
    for line in sys.stdin:
        answer(json.loads(line))
