"""Examples of plug-ins: a decode choice and a commit rule (docs/explanation/controllers.md)."""
