"""HTTP clients, built from `addresses`, `session` (one exchange), `retries`, `replicas` (a pool of equal servers) and
`client` (one call). Nothing here knows what the servers do."""
