"""The serving layer: every HTTP server of the library is built from these.

| module | what it gives |
| --- | --- |
| `app`, `routes` | a service: finds a request's route, admits it, answers it, turns errors into answers |
| `admission` | a gate: how many requests run, how many wait |
| `transport` | aiohttp's low-level server with deadlines; bodies, tokens |
| `json_bodies` | requests and answers as JSON, errors in FastAPI's shape |
| `config` | the settings that every server has, and a file with all of a server's |
| `supervisor`, `worker` | several processes that share a port, watched and drained |
| `peers` | one worker's calls of another |
| `session_table` | open sessions: one call at a time, so many at once, removed when idle |
| `metrics`, `openapi` | the page for Prometheus, and the API's description, from the routes |

Import from the modules. None of them depends on what a server serves.
"""
