"""What a process of ours is: the signals that end it, and the rights it gives up. Standard library only."""
