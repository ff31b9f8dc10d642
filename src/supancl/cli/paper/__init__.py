"""`supancl paper`: a module for each command, imported when it is used."""

COMMANDS: dict[str, str] = {
    "toy": "the toy study of Sec. 4.3: Tables 1 and 2 and the t-SNE figure, over alpha and seeds",
    "theory": "check every statement of the paper's theory (Sec. 4, App. A) against the shipped loss",
    "collapse": "the paper's Table 8: does a pool or a momentum branch prevent collapse?",
    "study": "train the rows of an ablation: pool design, positives, batch size, memory bank, alpha",
    "table": "a table of the paper beside its numbers: laid out from your runs, or trained from --data",
    "figure": "draw a figure of the paper from your runs: t-SNE of chosen classes, a panel per run",
}
