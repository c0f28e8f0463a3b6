"""The web console: the page at `/` and its files, built from `clients/console`."""
