"""How long the event loop is held by the dearest that a client may send: `python -m loadtest.turns`.

A server whose turns are measured to BEAT_S of its thread's CPU time (`server.py`) is sent, one after the other, the
largest and oddest requests that every route and socket command takes (`cases.py`); for each the longest turn is kept.
`measure` is what other programs call.
"""

from loadtest.turns.run import Turn, measure

__all__ = ["Turn", "measure"]
