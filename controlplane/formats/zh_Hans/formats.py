"""Chinese numbers, with a comma after each three digits, as in tables of China and in the other columns of a page."""

DECIMAL_SEPARATOR = "."
THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
