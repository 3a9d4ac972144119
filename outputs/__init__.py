"""How anything leaves this program: lines and tables on a terminal, streams that cannot be written, files, pages."""
