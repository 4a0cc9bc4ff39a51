"""Usage: a daily ledger of device time derived from claims, prices, budgets, and advice checked by measurements."""
