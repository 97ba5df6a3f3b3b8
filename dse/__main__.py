"""`python -m dse` is `dse`."""

import sys

from dse.start import main

sys.exit(main())
