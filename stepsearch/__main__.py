"""`python -m stepsearch`."""

from stepsearch.cli import main

raise SystemExit(main())
