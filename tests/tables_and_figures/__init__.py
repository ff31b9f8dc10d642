"""The paper's tables and figures: the documented commands in their smallest form, then the cell and its file."""
