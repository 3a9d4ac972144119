"""One run from build to tear-down."""
