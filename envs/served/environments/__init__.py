"""The env server: any registered env for trainers that have only its URL.

Each API is a face (`face`) over the same sessions: `toolgym.envs.served.openenv` and `toolgym.envs.served.ors`.
"""
