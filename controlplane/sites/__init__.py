"""Sites: other Switchyards to which jobs may spill over, as clients of their REST interfaces."""
