"""Evidence: files that are written once, what a ledger's bytes were, and what verdicts may have been chosen by."""
