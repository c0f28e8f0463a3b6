"""The mixture in five steps up to all users."""

from loadtest.load.shapes import Ramp as Ramp
from loadtest.locustfile import *  # noqa: F403
