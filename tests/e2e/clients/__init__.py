"""Clients of Confluent's REST Proxy that others wrote, as they are published, against a real server.

Each runs as a process of its own (a driver beside this file), installed once into `.venv/clients`: their packages never
meet ours. In the middle of its session the server is stopped, or killed, and started again on the same port.
"""
