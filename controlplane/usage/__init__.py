"""Usage: a daily ledger of device time derived from claims, its prices, and advice checked against measurements."""
