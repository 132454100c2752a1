"""Changes that operators make: resume, forget, policies, gaps, and state exported and imported."""
