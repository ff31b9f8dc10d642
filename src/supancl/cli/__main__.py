"""`python -m supancl.cli`, as torchrun starts it."""

from supancl.cli import entry

if __name__ == "__main__":
    entry()
