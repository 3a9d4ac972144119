"""The rules that choose a request's decode instance."""
