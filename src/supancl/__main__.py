"""`python -m supancl`: the command line, as torchrun starts it, too."""

from supancl.cli import entry

if __name__ == "__main__":
    entry()
