"""Names of what can be seen from outside: metrics, and the log's set-up. May import `domain`."""
