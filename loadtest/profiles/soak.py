"""The mixture for a long time: give it hours."""

from loadtest.load.shapes import Soak as Soak
from loadtest.locustfile import *  # noqa: F403
