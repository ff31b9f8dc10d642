"""What people plug in: encoders in other formats and programs, and loggers."""
