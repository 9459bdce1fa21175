"""What happens, made visible: events become log lines here, and nowhere else."""
