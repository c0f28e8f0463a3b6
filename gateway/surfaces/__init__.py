"""What clients speak. Each parses an envelope, calls `gateway.api` and `gateway.groups`, and renders the answer."""
