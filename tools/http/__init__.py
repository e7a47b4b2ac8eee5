"""The HTTP client layer: every client of the library is built from these.

| module | what it gives |
| --- | --- |
| `addresses` | the one check of a server's URL |
| `session` | pooled connections, and one exchange with a deadline that tells whether a failed one may have arrived |
| `retries` | which failures are safe to repeat, the schedule of attempts, and `Retry-After` |
| `replicas` | a pool of equal servers: health, checks, backoff, the least loaded one, affinity |
| `client` | one call from beginning to end: choose a server, send, repeat where safe, give up in time |

Import from the modules. Nothing here knows what the servers do.
"""
