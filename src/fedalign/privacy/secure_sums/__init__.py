"""How can a server add what parties hold without seeing any of it? Masks that cancel in the sum (docs/privacy.md).

The protocol is that of Bonawitz et al. (CCS 2017), with signed keys. Four steps per sum, each one message per party:

1. keys: a fresh X25519 key and the digest of a fresh seed, signed with the party's identity
2. shares: the secret key and the seed, divided among the parties (Shamir) and sealed for each of them
3. masked sums: the numbers plus one mask per other party and one of its own; the server sees random numbers
4. unmask: shares of the seeds of parties that sent numbers, and of the keys of those that did not

`fixed_point` turns numbers into integers modulo 2^64, `identity` signs, `shamir` divides secrets, `masks` makes masks,
`party` and `server` are the two sides. A party needs only its own secrets and the messages that it receives.
"""
