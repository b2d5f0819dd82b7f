"""The six stages. Each module has `pending`, which is pure, and `run`, which does the work that is pending."""
