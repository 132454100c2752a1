"""`python -m app` is `ratchet`."""

from app.cli import main

if __name__ == "__main__":
    main()
