"""The process: wiring of all parts, listeners, reload, and what is read of a data directory while no server runs."""
