"""The commands that are not studies, each a module: `arguments(parser)` and `command(args, console)`."""

# command -> what it does; the module of that name is imported when the command is used
COMMANDS: dict[str, str] = {
    "recipes": "list the recipes, or show one",
    "pretrain": "pretrain an encoder",
    "alpha": "train several alphas on your data and say which one to take",
    "evaluate": "judge an encoder",
    "embed": "write features of images",
    "import": "write another library's encoder as an encoder.safetensors",
    "detect": "fine-tune, test and export an object detector",
    "data": "look at data, check a data set's layout, keep decoded images",
}
NESTED = ("evaluate", "data", "detect")  # these have commands of their own below them

__all__ = ["COMMANDS", "NESTED"]
