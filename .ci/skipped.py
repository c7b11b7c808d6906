"""List the skipped tests of JUnit reports; fail when one skipped although its data is there."""

import os
import sys
from pathlib import Path
from xml.etree import ElementTree


def main(folder: str) -> int:
    """Print every skipped test of the reports in the folder, with its reason."""
    skipped = [
        (f"{case.get('classname')}::{case.get('name')}", skip.get("message", ""))
        for report in sorted(Path(folder).glob("*.xml"))
        for case in ElementTree.parse(report).iter("testcase")
        for skip in case.iter("skipped")
    ]
    for name, reason in skipped:
        print(f"{name}: {reason}")
    print(f"{len(skipped)} skipped")
    wrong = [name for name, reason in skipped if "STEPSEARCH_DATA" in reason]
    if wrong and os.environ.get("STEPSEARCH_DATA"):
        print(f"STEPSEARCH_DATA is set, yet {len(wrong)} tests skipped for want of it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
