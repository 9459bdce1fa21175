"""What stands between the rooms: the seams of a store, a handler and a flow, and what they exchange."""
