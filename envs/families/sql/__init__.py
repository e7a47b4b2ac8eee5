"""Text-to-SQL on SQLite, scored by what the query gives: `SQL-v0`."""
