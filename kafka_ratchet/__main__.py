"""Entry point of `python -m kafka_ratchet`, which runs the command `ratchet`."""

from kafka_ratchet.app.cli import main

if __name__ == "__main__":
    main()
