"""What people plug in: encoders in other formats, and loggers."""
