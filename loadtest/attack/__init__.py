"""Attacks on a real server, each bounded in number and time, and what became of the server: `make attack`."""
