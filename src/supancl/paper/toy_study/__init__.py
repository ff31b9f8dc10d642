"""SupSiam on toy data (Sec. 4.3, App. B): training all runs as one computation, and the study of Tables 1 and 2."""
