"""Jobs that accounts of this node submit on the node itself while it is cut off from its control plane."""
