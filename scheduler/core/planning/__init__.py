"""What a cycle decides: order, placement, repair, eviction, resizes, moves, time sharing."""
