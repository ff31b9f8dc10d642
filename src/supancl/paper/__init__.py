"""What exists to reproduce the paper: its studies, tables and figures (`supancl paper`)."""
