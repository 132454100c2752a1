"""Documents that answer an operator, as JSON, in the terminal and on the page."""
