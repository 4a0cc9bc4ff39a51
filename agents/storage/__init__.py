"""What tasks read and leave: bundles, inputs, outputs and checkpoints, kept by digest."""
