"""What needs packages beyond the development environment: run by make test-extras."""
