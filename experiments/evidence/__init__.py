"""The paper's claims on real images: the planned runs, their evaluation, and the page of results.

    python -m experiments.evidence plan                       # what is done, what is left, and the expected time
    python -m experiments.evidence run --until-seconds 1500   # works through the plan; each run writes a file
    python -m experiments.evidence plan --plan imagenet       # the second plan: ImageNet photographs with a ResNet-50
    python -m experiments.evidence page                       # RESULTS.md and its figures from those files

Outside the package, because it calls the command line, which the package must not.
"""
