"""A linear classifier on frozen features, by L-BFGS."""

from __future__ import annotations

import numpy as np

from supancl.evaluate.features import Features


def linear_accuracy(fit: Features, test: Features, regularization: float = 1.0) -> float:
    """Accuracy in percent of multinomial logistic regression on standardised features.

    `regularization` is scikit-learn's C; it is a setting like any other and must not be chosen on `test`.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fit, test = fit.labelled(), test.labelled()
    if len(np.unique(fit.labels.numpy())) < 2 or not len(test.labels):
        return float("nan")
    model = make_pipeline(StandardScaler(), LogisticRegression(C=regularization, max_iter=2000))
    model.fit(fit.values.double().numpy(), fit.labels.numpy())
    return 100 * float(model.score(test.values.double().numpy(), test.labels.numpy()))
