"""What people do with an encoder: predict, embed, audit, export; a scikit-learn estimator; loggers."""
