"""What it costs: capital cost, power and optical link budget of the network behind the 400G NICs."""
