"""`python -m supancl`: the command line."""

from supancl.cli import entry

if __name__ == "__main__":
    entry()
