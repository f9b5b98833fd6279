"""``python -m dex_lite`` is the command ``dex-lite``."""

from dex_lite._cli import main

if __name__ == "__main__":
    main()
