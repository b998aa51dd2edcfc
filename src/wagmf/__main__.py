"""``python -m wagmf`` is the command ``wagmf``."""

from wagmf.cli import main

main()
