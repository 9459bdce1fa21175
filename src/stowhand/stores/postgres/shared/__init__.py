"""What the queue and a user's table have in common on PostgreSQL. What differs between them is a plan (plan.py)."""
