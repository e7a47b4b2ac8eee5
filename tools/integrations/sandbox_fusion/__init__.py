"""SandboxFusion's evaluation endpoints for the sandbox server: data sets, prompts, and programs that are judged.

`api` answers, `datasets` has the formats, `messages` the fields; `worker` serves, with the settings of
`config`.
"""
