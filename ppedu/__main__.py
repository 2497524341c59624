"""`python -m ppedu`: the command line, where the `ppedu` script is not on the path."""

import sys

from ppedu.course.cli import main

if __name__ == "__main__":
    sys.exit(main())
