"""The search server: passages of a file over HTTP, in the protocols of Search-R1's and KILT's retrieval servers.

Import from the modules. `toolgym serve search` starts it.
"""
