"""Calls a pickled function with the local job's own pickled item; started as a file, it imports nothing of ours.

It leaves the pickled result, or exits with status 1 and leaves the exception's traceback.
"""

import os
import pickle
import sys
import traceback
from pathlib import Path


def main(file: str) -> int:
    """Call; the exit status is 0 where the function has returned."""
    with open(file, "rb") as stream:
        function, items = pickle.load(stream)
    output = Path(os.environ["SAMGRID_OUTPUT"])
    try:
        import cloudpickle

        result = pickle.loads(function)(pickle.loads(items[int(os.environ["SAMGRID_INDEX"]) - 1]))
        pickled = cloudpickle.dumps(result)
    except Exception:  # noqa: BLE001 whatever the function raises
        traceback.print_exc()
        (output / "traceback.txt").write_text(traceback.format_exc(), errors="backslashreplace")
        return 1
    (output / "result.pickle").write_bytes(pickled)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
