"""The contract, selection, planning and running: what every platform shares."""

import logging

# Whoever imports hal decides whether and where its log is seen.
logging.getLogger("hal").addHandler(logging.NullHandler())
