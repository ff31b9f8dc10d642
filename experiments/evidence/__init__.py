"""The evidence: studies as rows of runs, the driver that makes them, and the pages that show their numbers.

    python -m experiments.evidence plan starts    # the cells that are left
    python -m experiments.evidence run starts     # works through them; each becomes a file
    python -m experiments.evidence rows           # fills the tables of the pages, draws the figures

Outside the package, because it calls the command line, which the package must not.
"""
