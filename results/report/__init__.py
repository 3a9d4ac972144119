"""Tables, figures and pages made from the artifacts of runs."""
