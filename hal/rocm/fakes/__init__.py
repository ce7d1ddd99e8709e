"""Stand-ins for the libraries that this platform calls."""

from hal.testing.stand_ins.stand_in import StandIn

from . import aiter

STAND_INS = {"aiter": StandIn(make=aiter.make_library)}
