"""Mutants of checkpoints and of the atomic write."""

# ruff: noqa: E501
# fmt: off
# one line for one mutant, with the text as it stands in the module

from tests.long.mutants import Group, Mutant

CHECKPOINT = (
    Mutant("MAX_CHECKPOINTS = 2", "MAX_CHECKPOINTS = 1"),
    Mutant("MAX_CHECKPOINTS = 2", "MAX_CHECKPOINTS = 3"),
    Mutant('path = folder / f"step-{step:09d}.pt"', 'path = folder / f"step-{step}.pt"'),
    Mutant('content = {"schema_version": SCHEMA_VERSION, **state}', "content = dict(state)"),
    Mutant('content = {"schema_version": SCHEMA_VERSION, **state}', 'content = {"schema_version": SCHEMA_VERSION - 1, **state}'),
    Mutant("write_atomically(path, lambda temporary: save_with_torch(temporary, content))", "save_with_torch(path, content)"),
    Mutant('content["digest"] = content_digest(content)', 'content["digest"] = ""'),
    Mutant("content_digest(content) == expected", "True"),
    Mutant("if checkpoint.name <= path.name][:-MAX_CHECKPOINTS]", "if checkpoint.name < path.name][:-MAX_CHECKPOINTS]"),
    Mutant("if checkpoint.name <= path.name][:-MAX_CHECKPOINTS]", "][:-MAX_CHECKPOINTS]"),
    Mutant("        old.unlink(missing_ok=True)\n", "        pass\n"),
    Mutant('return sorted(folder.glob("step-*.pt"))', 'return sorted(folder.glob("step-*.pt"), reverse=True)'),
    Mutant("for path in reversed(checkpoints(folder)):", "for path in checkpoints(folder):"),
    Mutant("            damaged.append(str(error))\n", "            pass\n"),
    Mutant("    if damaged:\n        raise BadInput", "    if False:\n        raise BadInput"),
    Mutant("if version != SCHEMA_VERSION:", "if version > SCHEMA_VERSION:"),
    Mutant("if version != SCHEMA_VERSION:", "if version < SCHEMA_VERSION:"),
    Mutant('map_location="cpu", weights_only=True', 'map_location="cpu", weights_only=False'),
    Mutant("torch.serialization.safe_globals(list(allowed))", "torch.serialization.safe_globals([])"),
    Mutant("if not isinstance(content, dict):\n        raise BadInput", "if content is None:\n        raise BadInput"),
)

WRITING = (
    Mutant("        os.replace(temporary, path)\n", "        path.write_bytes(temporary.read_bytes())\n"),
    Mutant("        os.replace(temporary, path)\n", "        path.unlink(missing_ok=True)\n        os.replace(temporary, path)\n"),
    Mutant("            os.fsync(file.fileno())\n", ""),
    Mutant("            temporary.unlink(missing_ok=True)\n", "            pass\n"),
    Mutant("temporary.chmod(usual_mode)", "temporary.chmod(0o600)"),
    Mutant("    sync_folder(path.parent)\n", ""),
    Mutant("except (OSError, RuntimeError, SafetensorError)", "except (OSError, SafetensorError)"),
    Mutant('hashlib.file_digest(file, "sha256")', 'hashlib.file_digest(file, "sha1")'),
    Mutant("isinstance(value, float) and not math.isfinite(value)", "isinstance(value, float) and math.isnan(value)"),
)

GROUPS = (
    Group(
        "runs/checkpoint.py",
        (
            "tests/runs/test_checkpoint.py", "tests/runs/test_digests.py", "tests/runs/test_run_folder.py", "tests/test_safety.py", "tests/runs/test_importing.py",
            "-k", "test_checkpoint or test_digests or leaves_those or last_two or executes_it or whatever_is_wrong",
        ),
        CHECKPOINT,
    ),
    Group("files/__init__.py", ("tests/test_files.py", "tests/runs/test_run_folder.py", "tests/runs/test_checkpoint.py", "-k", "test_files or write or reader or synced or null or test_checkpoint"), WRITING),
)
