"""The tombstone of a grid job: that someone, or a failure, wants it ended; the workers see to the rest."""

import logging
import time

from jobmanager.database import Database

logger = logging.getLogger(__name__)


def put_tombstone(database: Database, grid_job: str, reason: str) -> bool:
    """Want a grid job ended, from now on and for ever; False if it has ended already."""
    with database.transaction():
        job = database.grid_job(grid_job)
        if job.state.is_final:
            return False
        job.cancel(time.time(), reason)
        database.put_grid_job(job)
    logger.info("%s cancelled: %s", grid_job, reason)
    return True
