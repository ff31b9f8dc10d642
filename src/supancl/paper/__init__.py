"""What exists to reproduce the paper: its studies, tables and figures (`supancl paper`)."""

from supancl.paper.commands import collapse, figure, study, table, theory, toy

__all__ = ["collapse", "figure", "study", "table", "theory", "toy"]
