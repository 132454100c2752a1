"""Result stores. Each commits rows and Kafka offsets in one step: see `store.py` for what a store promises."""
