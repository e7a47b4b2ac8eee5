"""The env server: any registered env for trainers that have only its URL.

Two APIs over the same sessions: OpenEnv's (HTTP, WebSockets and JSON-RPC) and the Open Reward Standard's.

| module | what it gives |
| --- | --- |
| `config` | the settings |
| `catalog` | the envs that are offered, with their tasks and tools |
| `session`, `sessions` | an env and its episode, with deadlines; all of them, found by name and closed when idle |
| `actions`, `answers` | what clients ask for, and what they get |
| `openenv_api`, `websocket`, `mcp` | OpenEnv's API |
| `ors_api`, `calls`, `event_stream` | the Open Reward Standard's |
| `app` | the service: its paths, and which env a call is about |
| `serve`, `worker` | the command, and its process |

What every server needs is in `toolgym.tools.serving`.
"""
