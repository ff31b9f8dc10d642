"""How the rules of `auto.METHOD` were chosen: candidate rules against the paper's nearest recipe, at equal time."""
