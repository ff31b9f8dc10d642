"""Several runs of one question: trained, continued and compared."""
