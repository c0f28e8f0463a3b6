"""Server-Sent Events, and the same records as lines for programs."""
