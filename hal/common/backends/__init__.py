"""Which platforms and backends there are, what devices they find, and who of them serves a request."""
