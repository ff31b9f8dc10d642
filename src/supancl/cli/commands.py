"""The commands and their one-line help. Each command is a module of this package with `arguments(parser)` and
`command(args, console)`, imported when the command is used."""

GROUPS: dict[str, dict[str, str]] = {
    "train": {
        "data": "look at data, check a benchmark's layout, cache decoded images",
        "pretrain": "pretrain an encoder on your images",
        "recipes": "list the recipes, or show one with the source of each value",
        "alpha": "train several alphas on your data and recommend one",
        "compare": "train several recipes on your data, and say which differ",
        "sweep": "train a recipe with every combination of some settings",
        "runs": "list runs with their state, size and accuracy",
    },
    "evaluate and use": {
        "evaluate": "k-NN, linear, transfer, few-shot, fine-tuning, or all of them",
        "predict": "label images with a run, or fill in missing labels",
        "embed": "write features of images to a file",
        "detect": "fine-tune, test and export an object detector",
        "export": "write an encoder for timm, transformers, ONNX or torchvision",
        "import": "convert another library's encoder to encoder.safetensors",
    },
    "look": {
        "report": "one page on runs: verdict, curves, evaluations, recipe, data",
        "map": "a page with a zoomable map of your images, by their features",
        "audit": "labels that look wrong, duplicates and outliers of your images",
    },
    "this program": {
        "doctor": "are versions, device and disk fine, and what to change",
    },
    "the paper": {"paper": "the paper's toy study, theory, ablations, tables and figures"},
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
NESTED = ("evaluate", "data", "detect", "paper")  # these have subcommands
PAPER: dict[str, str] = {
    "toy": "the toy study of Sec. 4.3: Tables 1 and 2 and the t-SNE figure",
    "theory": "check every statement of Sec. 4 and App. A on the shipped loss",
    "collapse": "Table 8: does a pool or a momentum branch prevent collapse?",
    "study": "train an ablation's rows: pool, positives, batch, memory, alpha",
    "table": "a table next to the paper's, from your runs or from --data",
    "figure": "draw a figure from your runs: t-SNE of chosen classes",
}

__all__ = ["COMMANDS", "GROUPS", "NESTED", "PAPER"]
