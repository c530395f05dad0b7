"""The contracts that slots have with the things that their records build: one file per slot."""
