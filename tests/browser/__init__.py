"""The HTML pages in a real browser: run by make test-browser."""
