"""Start from trained weights: frozen, fine-tuned or trained with SupSiam? Starts, data, cells and the page."""
