"""How well wrong labels are found: encoders trained on CIFAR-100 with wrong labels; beside cleanlab and k-NN votes."""
