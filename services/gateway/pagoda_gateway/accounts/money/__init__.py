"""What requests cost: prices, rows that are priced and chained, receipts, balances, retention.

Money is integers: micros, millionths of the unit that prices are in. Knows no HTTP.
"""
