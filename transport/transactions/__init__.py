"""The one place that talks transactions: the transactional producer, and what to do about a hanging transaction."""
