"""The REST Proxy's consumer instances: a named place in a group, on the server, that a client polls."""
