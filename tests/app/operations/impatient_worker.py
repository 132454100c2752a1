"""A worker whose halted partitions try again after a second, where others pause for up to half a minute."""

from kafka_ratchet.app.cli import main
from kafka_ratchet.transport import lane

if __name__ == "__main__":
    lane.PAUSE_MOST_S = 1.0  # type: ignore[misc] # for this process
    main()
