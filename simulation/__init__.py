"""The flow-level twin: what ideal flows would have done with the same requests and the same decisions."""
