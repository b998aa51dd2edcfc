"""``python -m wagmf`` is the command ``wagmf``."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C ends it in one line, even while it is still being imported.

    >>> import subprocess
    >>> subprocess.run([sys.executable, "-m", "wagmf", "--version"], capture_output=True).returncode
    0
    """
    try:
        from wagmf.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit("Stopped; the runs that finished are kept, and the same command continues.")


if __name__ == "__main__":
    main()
