"""The paper's claims on real images: which runs are made, how they are judged, and the page that tells what came out.

    python -m experiments.evidence plan                       # what is there, what is missing, how long it will take
    python -m experiments.evidence run --until-seconds 1500   # works through the plan; a run ends as a file in results/
    python -m experiments.evidence plan --plan imagenet       # the second plan: ImageNet photographs with a ResNet-50
    python -m experiments.evidence page                       # RESULTS.md and its figures from those files

Beside the package, not in it: it calls the command line, which nothing in the package may.
"""
