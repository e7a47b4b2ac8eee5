"""The sandbox server: SandboxFusion's API and stateful sessions over HTTP.

`app` has the paths, `execute`, `session_api` and `process_api` answer them, `request_checks` checks requests, `config`
has the settings, and `worker` is one of its processes. The parts of every server are in `toolgym.tools.serving`, the
messages in `toolgym.tools.sandbox.protocol`. What serves more than the sandbox adds its routes to the app, see
`toolgym.tools.serving.app.HttpApp.add_routes`.
"""
