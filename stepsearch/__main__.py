"""The program: `stepsearch`, or `python -m stepsearch`."""

import sys


def main() -> int:
    """Run a command; returns the exit status, also when Ctrl-C comes while modules load."""
    try:
        from stepsearch.cli import main as command

        return command()
    except KeyboardInterrupt:
        print("stepsearch: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
