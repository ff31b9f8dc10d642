"""Evaluation protocols on real data: from an encoder and a source of images to results."""
