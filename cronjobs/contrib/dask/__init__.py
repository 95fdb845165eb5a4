"""Where an attempt runs elsewhere: clusters, the supervisor that submits to one, and the guard on its workers."""
