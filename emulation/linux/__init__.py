"""The kernel as this project uses it: namespaces, /proc, processes, rtnetlink, and the ledger of what a run made."""
