"""How the rules of `auto.METHOD` were settled: candidate rules against the paper's nearest recipe, at equal time."""
