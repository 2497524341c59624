"""Makes `python -m ppedu.doctor` the same as `ppedu doctor`."""

import sys

from ppedu.doctor import main

if __name__ == "__main__":
    sys.exit(main())
