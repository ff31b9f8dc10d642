"""Runs the Python blocks that standard input brings, one JSON string a line, and writes a zero byte after each."""

import json
import sys

if __name__ == "__main__":
    sys.path.insert(0, "")
    names = {"__name__": "__main__"}
    for line in sys.stdin:
        exec(compile(json.loads(line), "block", "exec"), names)
        print(end="\0", flush=True)
