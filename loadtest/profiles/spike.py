"""The mixture with a quarter of the users, all of them for a fifth of the time, a quarter again."""

from loadtest.load.shapes import Spike as Spike
from loadtest.locustfile import *  # noqa: F403
