"""`python -m memtrials`."""

from memtrials.cli import main

if __name__ == "__main__":
    main()
