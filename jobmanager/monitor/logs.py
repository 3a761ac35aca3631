"""How our processes log: one line a record, times in UTC."""

import logging
import time


def log_to(handler: logging.Handler) -> None:
    """Log INFO and up through this handler, in place of any other."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
