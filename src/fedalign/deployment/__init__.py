"""Parties on machines of their own, on Flower: the server's side, a party's side, receipts, and a kit to begin with."""
