"""``python -m feedline``, the same as the command ``feedline``."""

from feedline.cli import main

main()
