"""Result stores. Each commits rows and Kafka offsets in one step; `store.py` states the promises."""
