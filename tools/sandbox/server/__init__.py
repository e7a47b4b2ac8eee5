"""The sandbox server: SandboxFusion's API and stateful sessions over HTTP.

`app` is the service, `wire` its messages, `config` its settings, `serve` the command that runs it in several processes.
Each is imported from its module: the client needs `wire` without the rest.
"""
