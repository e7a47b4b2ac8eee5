"""The sandbox server: SandboxFusion's API and stateful sessions over HTTP.

`app` has the paths, `execute` and `session_api` answer them, `request_checks` checks what clients ask for, `config` has
the settings, `serve` is the command, and `worker` is one of its processes. What every server needs is in
`toolgym.tools.serving`; the messages are in `toolgym.tools.sandbox.protocol`.
"""
