"""The sandbox server: SandboxFusion's API and stateful sessions over HTTP, on `toolgym.tools.serving`.

Servers of more than the sandbox add their routes to the app, see `toolgym.tools.serving.app.HttpApp.add_routes`.
"""
