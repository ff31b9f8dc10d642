"""supancl: supervised asymmetric non-contrastive learning."""
