"""memtrials: evaluate the long-term memory of LLM agents, stage by stage, over one append-only ledger."""

__version__ = "0.1.0"
