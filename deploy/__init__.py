"""How Switchyard is put onto machines: the local stack, and units and rules for production."""
