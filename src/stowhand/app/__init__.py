"""What an application declares, enqueues and embeds; and what it can set."""
