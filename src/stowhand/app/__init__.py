"""The App, with which an application declares tasks, enqueues jobs and embeds workers; and its settings."""
