"""Choices and defaults of flags whose own modules need torch; tests/cli/test_start_up.py compares them with those."""

SUITE_PROTOCOLS = ("knn", "transfer", "fewshot")  # evaluate.suite.PROTOCOLS
TABLE_FORMATS = ("text", "markdown", "latex", "csv")  # reports.tables.FORMATS, paper.tables.formats.FORMATS
VOC_YEARS = ("07+12", "2007", "2012")  # detect.layouts.YEARS
# paper.tables.layouts.LAYOUTS
PAPER_TABLES = ("1", "2", "3", "4", "5", "6", "7", "8", "F.1", "F.2", "F.3", "G.1", "H.1")
RECIPE_FAMILIES = ("imagenet100", "cifar100", "cifar10", "vit", "digits")  # paper.tables.plan.FAMILIES
TOY_READINGS = ("literal", "near")  # paper.toy.training.READINGS
THEORY_SAMPLES = 8000  # paper.theory.checks.Settings.samples
STUDIES = {  # paper.study_rows.STUDIES
    "pool": "the target pool's design (Table 7), and none",
    "positives": "M, the number of positives drawn from the pool (Table F.2)",
    "batch": "batch size 128 and 256 (Table F.3)",
    "memory": "SupCon with a memory bank at both batch sizes (Table F.3)",
    "alpha": "alpha, trained on all classes (Tables 1, 3, F.1); to choose one, use `supancl alpha`",
}
