"""The REST Proxy's consumer instances: a named member of a group, on the server, that a client polls."""
