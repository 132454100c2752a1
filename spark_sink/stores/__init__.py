"""Result stores, which commit rows and their Kafka offsets together; `store.py` states the guarantees."""
