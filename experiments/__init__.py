"""Evidence, results and benchmarks: run from the repository, also where the package is not installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "src"))
