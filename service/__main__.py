"""`python -m service` is `tenure`."""

from service.cli import main

if __name__ == "__main__":
    main()
