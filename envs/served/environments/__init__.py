"""The env server: any registered env for trainers that have only its URL.

Each API is a face over the same sessions: `toolgym.envs.served.openenv` and `toolgym.envs.served.ors`.

| module | holds |
| --- | --- |
| `config` | the settings |
| `catalog` | the envs that are offered, with their tasks and tools |
| `session`, `calls` | an env and its episode for one client; all sessions; calls that outlive their connection |
| `step_metadata` | metadata of a step, the same in each API |
| `face`, `app` | an API's contract; the service, with the table of its faces |
| `worker` | the process of the command |
"""
