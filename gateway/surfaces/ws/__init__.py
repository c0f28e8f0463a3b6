"""The WebSocket surface `/ws/v1`: one socket, many subscriptions and produces. `docs/websocket.md` is its contract."""
