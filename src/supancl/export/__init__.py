"""Encoders in other people's programs."""
