"""`python -m kafka_ratchet` is `ratchet`."""

from kafka_ratchet.app.cli import main

if __name__ == "__main__":
    main()
